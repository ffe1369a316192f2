use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ledger::{EntryId, LedgerId, Password};
use metadata::{Gateways, MetadataStore};

use crate::error::{Error, ErrorKind, Result};
use crate::{GatewayProbe, Probed, ReleaseProbe};

const DOING: &str = "release";

/// Reads through any of the gateways that are registered: the one that answered last, then the others, until one does.
pub struct RegisteredProbe {
    gateways: Gateways,
    /// The longest wait for one gateway.
    patience: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    probes: BTreeMap<String, GatewayProbe>,
    /// The endpoint that answered last.
    answered: Option<String>,
}

impl RegisteredProbe {
    /// A probe over the gateways registered in `store`; waits for each no longer than `patience`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>, patience: Duration) -> Self {
        Self { gateways: Gateways::new(store), patience, known: Mutex::default() }
    }

    /// The endpoints of now in the order in which to try them; forgets those that are gone.
    async fn endpoints(&self, ledger: LedgerId) -> Result<Vec<String>> {
        let registered = self.gateways.list().await;
        let registered = registered
            .map_err(|error| Error::metadata("look up the gateways to prove the release of", ledger, error))?;
        let mut endpoints: Vec<String> = registered.into_iter().map(|gateway| gateway.endpoint).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.probes.retain(|endpoint, _| endpoints.contains(endpoint));
        endpoints.sort_by_key(|endpoint| known.answered.as_ref() != Some(endpoint));
        Ok(endpoints)
    }

    fn probe(&self, endpoint: &str) -> Result<GatewayProbe> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe) = known.probes.get(endpoint) {
            return Ok(probe.clone());
        }
        let probe = GatewayProbe::new(endpoint)?;
        known.probes.insert(endpoint.to_owned(), probe.clone());
        Ok(probe)
    }

    fn note(&self, endpoint: &str, answered: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            known.answered = Some(endpoint.to_owned());
        } else {
            // The next try dials anew.
            known.probes.remove(endpoint);
        }
    }
}

#[async_trait]
impl ReleaseProbe for RegisteredProbe {
    async fn read_cold(&self, ledger: LedgerId, entry: EntryId, password: Option<&Password>) -> Result<Probed> {
        let mut last = None;
        for endpoint in self.endpoints(ledger).await? {
            let read = async { self.probe(&endpoint)?.read_cold(ledger, entry, password).await };
            let error = match tokio::time::timeout(self.patience, read).await {
                Ok(Ok(probed)) => {
                    self.note(&endpoint, true);
                    return Ok(probed);
                }
                // Whoever says this has read: another gateway's better word must not cover it.
                Ok(Err(error)) if error.kind() == ErrorKind::Damaged => return Err(error),
                Ok(Err(error)) => error,
                Err(_) => Error::of_ledger(ErrorKind::Timeout, DOING, ledger, "no answer in time"),
            };
            tracing::debug!(endpoint, error = &error as &dyn std::error::Error, "a gateway did not serve the proof");
            self.note(&endpoint, false);
            last = Some((endpoint, error));
        }
        Err(match last {
            None => Error::of_ledger(
                ErrorKind::Unavailable,
                DOING,
                ledger,
                "no gateway is registered that could prove that readers reach its object; the release waits for one (`thermocline gateway`)",
            ),
            Some((endpoint, error)) => {
                let why = format_args!("no registered gateway proved it, at last {endpoint}");
                Error::of_ledger(error.kind(), DOING, ledger, why).caused_by(error)
            }
        })
    }
}
