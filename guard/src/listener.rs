use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use common::clock::Clock;
use common::metrics::Set;
use common::net::{BoxStream, Listener, Offer};
use common::shutdown::TaskTree;
use proto::{Demands, TlsDemand};
use tokio::sync::{Semaphore, mpsc};

use crate::config::{GuardConfig, GuardTls, is_unset};
use crate::crowd::{Crowds, Warnings};
use crate::error::Error;
use crate::files::{CERTIFICATE, Named, Reloaded};
use crate::greet::{Denied, Material, greet};
use crate::metrics::Metrics;
use crate::tls::{self, Validity};
use crate::tokens::Tokens;

/// Connections that are greeted at one time.
pub(crate) const GREETINGS_MAX: usize = 1024;
/// Those of one host, once half of the places are taken: a client of cold ids may open a connection to each of them, 64 for each member of an ensemble.
const GREETINGS_OF_HOST_MAX: usize = 256;
/// Connections that are let in and wait for the server to take them.
const ADMITTED_MAX: usize = 16;

/// Stands before servers: what it lets in has said what is demanded.
pub struct Guard {
    demands: Demands,
    material: Reloaded<Material>,
    metrics: Metrics,
    warnings: Warnings,
}

impl Guard {
    /// Reads certificates and tokens. `None` when nothing is demanded of anybody: then nobody need stand there.
    ///
    /// # Errors
    /// Settings that do not fit each other, and files that cannot be used, named.
    pub async fn open(config: &GuardConfig, clock: &Clock) -> Result<Option<Arc<Self>>, Error> {
        config.validate()?;
        if config.is_open() {
            return Ok(None);
        }
        let metrics = Metrics::default();
        let files = vec![
            Named::new(CERTIFICATE, &config.certificate),
            Named::new("private key", &config.key),
            Named::new("authorities of clients' certificates", &config.client_ca),
            Named::new("tokens", &config.tokens),
        ];
        let (has_tls, time) = (config.tls != GuardTls::Off, clock.clone());
        let material = Reloaded::open(
            files,
            clock,
            metrics.files.clone(),
            Box::new(move |contents| {
                let [certificate, key, client_ca, tokens] = contents else {
                    return Err(Error::Config("four files were read".to_owned()));
                };
                let tokens = tokens.given().map(Tokens::parse).transpose()?;
                if !has_tls {
                    return Ok(Material { tls: None, tokens, validity: None });
                }
                let tls = Arc::new(tls::server(certificate, key, client_ca.given(), &time)?);
                Ok(Material { tls: Some(tls), tokens, validity: Some(Validity::of(certificate)?) })
            }),
        )
        .await?;
        Ok(Some(Arc::new(Self { demands: config.demands(), material, metrics, warnings: Warnings::new() })))
    }

    /// Whether a token may come over a connection that everybody on the way can read.
    pub fn takes_tokens_in_clear(config: &GuardConfig) -> bool {
        !is_unset(&config.tokens) && config.tls != GuardTls::Required
    }

    /// Stands before `listener`: hands on the connections that it lets in. Greetings are tasks of `tasks`, and end with it or with
    /// what is returned.
    #[must_use]
    pub fn listen(self: &Arc<Self>, listener: Box<dyn Listener>, tasks: &TaskTree) -> Box<dyn Listener> {
        let address = listener.address();
        let offer = Offer { tls: self.demands.tls != TlsDemand::Off, auth: self.demands.plugin.clone() };
        let (admit, admitted) = mpsc::channel(ADMITTED_MAX);
        tasks.spawn("greet", accept(Arc::clone(self), listener, admit, tasks.clone()));
        Box::new(Guarded { address, offer, admitted })
    }

    /// The metrics of a role's guard; the same ones, all 0, where nobody stands.
    pub fn metrics(guard: Option<&Arc<Self>>) -> Set {
        guard.map_or_else(Metrics::default, |guard| guard.metrics.clone()).shown()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> &Metrics {
        &self.metrics
    }

    async fn greet(&self, stream: BoxStream, peer: String) -> Option<(BoxStream, String)> {
        let _greeting = self.metrics.greeting();
        let material = self.material.current().await;
        match greet(stream, &self.demands, &material, &self.metrics).await {
            Ok(admitted) => {
                self.metrics.ended(admitted.ended);
                let peer = if admitted.shown.is_empty() { peer } else { format!("{peer} ({})", admitted.shown) };
                Some((admitted.stream, peer))
            }
            Err(denied) => {
                self.denied(&peer, &denied);
                None
            }
        }
    }

    fn denied(&self, peer: &str, denied: &Denied) {
        self.metrics.ended(denied.counted());
        match denied.is_notable().then(|| self.warnings.next()).flatten() {
            Some(0) => tracing::warn!(peer, cause = %denied, "connection was not let in"),
            Some(not_told) => {
                tracing::warn!(peer, cause = %denied, not_told, "connection was not let in; nor were others")
            }
            None => tracing::debug!(peer, cause = %denied, "connection was not let in"),
        }
    }
}

type Admit = mpsc::Sender<io::Result<(BoxStream, String)>>;

/// Takes connections in and has each greeted beside the others, until nobody wants them any more or no more will come.
async fn accept(guard: Arc<Guard>, mut listener: Box<dyn Listener>, admit: Admit, tasks: TaskTree) {
    let (places, crowds) = (Arc::new(Semaphore::new(GREETINGS_MAX)), Crowds::new(GREETINGS_OF_HOST_MAX));
    loop {
        let accepted = async {
            // Over the bound connections wait in the system's queue, where they cost nothing here.
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = tasks.stopping() => return,
            () = admit.closed() => return,
            accepted = accepted => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Nobody left to tell is no trouble.
                let _ = admit.send(Err(error)).await;
                return;
            }
        };
        let crowded = places.available_permits() < GREETINGS_MAX / 2;
        let Some(counted) = crowds.enter(&peer, crowded) else {
            guard.denied(&peer, &Denied::Crowd);
            continue;
        };
        let (guard, admit, stopping) = (Arc::clone(&guard), admit.clone(), tasks.clone());
        tasks.spawn("greeting", async move {
            tokio::select! {
                biased;
                () = stopping.stopping() => {}
                () = admit.closed() => {}
                let_in = guard.greet(stream, peer) => {
                    if let Some(let_in) = let_in {
                        let _ = admit.send(Ok(let_in)).await;
                    }
                }
            }
            drop((place, counted));
        });
    }
}

/// The listener behind a guard.
struct Guarded {
    address: String,
    offer: Offer,
    admitted: mpsc::Receiver<io::Result<(BoxStream, String)>>,
}

#[async_trait]
impl Listener for Guarded {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        let ended = || io::Error::other(format!("accept on {}: the role is stopping", self.address));
        self.admitted.recv().await.ok_or_else(ended)?
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn offer(&self) -> Offer {
        self.offer.clone()
    }
}
