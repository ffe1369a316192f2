//! `thermocline bookie`: a storage node.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ::bookie::{Bookie, BookieParts, BookieState, LocalDisk};
use async_trait::async_trait;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{BoxStream, Listener, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use guard::Guard;
use ledger::BookieId;

use super::{Watched, advertised, compose, door, failed, front, serve_until_told, usage};
use crate::args::BookieArgs;
use crate::fault::chain;
use crate::settings::{self, BookieSettings};
use crate::{Fault, admin};

/// Runs a bookie to its end.
pub(crate) async fn run(args: BookieArgs) -> Result<(), Fault> {
    let settings = settings::load::<BookieSettings>(&args.config, &args.flags())?.value;
    let dir = settings.dir.clone();
    let listener = front::bind(&settings.listen).await?;
    let address = advertised("bookie", &listener.address(), &settings.advertise)?;
    let (clock, root) = (Clock::system(), TaskTree::root("bookie"));
    let (connector, connecting) = door::connector(&settings.connect, &clock).await?;
    if settings.bookie.relay_concurrency > 0
        && let Some(what) = door::missing(&settings.guard, &settings.connect)
    {
        tracing::warn!(
            what,
            "others that are guarded as this bookie is will not let it in: reads of ledgers that moved away cannot be relayed to them"
        );
    }
    let guard = door::guard(&settings.guard, &settings.listen, &clock).await?;
    let watched = Watched::start("bookie", &root, &settings.admin, &settings.listen).await?;
    watched.admin.metrics.add(connecting);
    let disk = LocalDisk::open(&dir)
        .await
        .map_err(|error| Fault::usage(format!("data folder {}: {error}; choose another with --dir", dir.display())))?;
    let id = id(&settings.id, &disk, &dir, &address).await?;
    let rng = Rng::from_os();
    let (metadata, _instance) = compose::metadata(&settings.metadata, &rng, &watched.admin.metrics).await?;

    let budget = ByteBudget::new("bookie", settings.bookie.request_bytes());
    let parts = BookieParts {
        id: id.clone(),
        dir: dir.clone(),
        disk: Arc::new(disk),
        metadata,
        connector,
        listener: door::guarded(
            guard.as_ref(),
            Box::new(Advertised { inner: listener, address: address.clone() }),
            &root.child("door"),
        ),
        clock,
        rng,
        budget: budget.clone(),
        tasks: root.clone(),
    };
    let bookie = Bookie::start(settings.bookie, parts)
        .await
        .map_err(|error| Fault::usage(format!("start bookie {id} in {}: {}", dir.display(), chain(&error))))?;
    if let BookieState::ReadOnly { reason, .. } = bookie.stats().state {
        eprintln!("warning: {id} takes no entries: {reason}");
    }
    watched.admin.watch_bookie(&bookie);
    watched.admin.metrics.add(Guard::metrics(guard.as_ref()));
    watched.admin.metrics.add(admin::metrics::budgets(&[budget]));
    let facts = [("id", id.as_str()), ("address", address.as_str())];
    serve_until_told("bookie", &facts, watched, root, async |patience| {
        bookie.stop(patience.left()).await.map_err(failed)
    })
    .await
}

/// The bookie's id: the one it was given, else the one its directory has, else the address it registers.
async fn id(given: &str, disk: &LocalDisk, dir: &Path, address: &str) -> Result<BookieId, Fault> {
    if !given.is_empty() {
        return BookieId::for_real_bookie(given).map_err(usage);
    }
    match ::bookie::known_id(disk, dir).await.map_err(usage)? {
        Some(id) => Ok(id),
        None => BookieId::for_real_bookie(address).map_err(usage),
    }
}

/// A listener that others reach under another address than the one it is bound to.
struct Advertised {
    inner: TcpListener,
    address: String,
}

#[async_trait]
impl Listener for Advertised {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        self.inner.accept().await
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}
