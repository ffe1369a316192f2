//! `thermocline offloader`: settles closed ledgers into the object store and releases them from the bookies.

use std::sync::Arc;

use ::offloader::{ClientSource, Offloader, OffloaderParts, StatusSource, TieringService, WireProbe};
use async_trait::async_trait;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::Listener as _;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::BookieId;

use super::compose::{self, ClientOf};
use super::{Watched, door, failed, front, serve_until_told, usage};
use crate::args::OffloaderArgs;
use crate::settings::{self, OffloaderSettings};
use crate::{Fault, admin, kill_at};

/// Runs an offloader to its end.
pub(crate) async fn run(args: OffloaderArgs) -> Result<(), Fault> {
    let settings = settings::load::<OffloaderSettings>(&args.config, &args.flags())?.value;
    settings.offloader.validate().map_err(usage)?;
    let cold_url = compose::cold_url(&settings.cold)?;
    let memory_max = settings.memory_max.bytes();
    let client_bytes = compose::client_bytes(memory_max, settings.offloader.memory_max.bytes(), "offloader")?;
    let listener = front::bind(&settings.listen).await?;
    let endpoint = format!("http://{}", listener.address());
    let (clock, rng) = (Clock::system(), Rng::from_os());
    let (connector, connecting) = door::connector(&settings.connect, &clock).await?;
    let root = TaskTree::root("offloader");
    let watched = Watched::start("offloader", &root, &settings.admin, &settings.listen).await?;
    watched.admin.metrics.add(connecting);
    let (metadata, instance) = compose::metadata(&settings.metadata, &rng, &watched.admin.metrics).await?;
    let cold = compose::cold(&cold_url, &rng, &watched.admin.metrics).await?;

    let (serving, client_tasks) = (root.child("front"), root.child("client"));
    let budget = ByteBudget::new("node", memory_max);
    let of = ClientOf {
        metadata: metadata.clone(),
        clock: &clock,
        rng: &rng,
        budget: &budget,
        bytes: client_bytes,
        tasks: client_tasks.clone(),
        metrics: &watched.admin.metrics,
        connector: connector.clone(),
    };
    let client = compose::client(of, settings.client);
    let patience = settings.offloader.registration_patience();
    let parts = OffloaderParts {
        metadata: metadata.clone(),
        cold,
        instance_id: instance,
        entries: Arc::new(ClientSource::new(client)),
        probe: Arc::new(WireProbe::new(metadata, connector, patience)),
        clock,
        rng,
        budget: budget.clone(),
        tasks: serving.clone(),
        observer: kill_at::observer(args.kill_at),
    };
    let offloader = Offloader::new(parts, settings.offloader).map_err(usage)?;
    let budgets = vec![budget, offloader.budget().clone()];
    watched.admin.metrics.add(offloader.metrics());
    watched.admin.metrics.add(admin::metrics::budgets(&budgets));
    let tiering = TieringService::new(offloader.clone(), Arc::new(Budgets(budgets)), env!("CARGO_PKG_VERSION"));
    front::serve(listener, &serving, None, Some(tiering)).await?;
    offloader.start();
    serve_until_told("offloader", &[("endpoint", &endpoint)], watched, root, async |patience| {
        serving.stop(patience.left()).await.map_err(failed)?;
        client_tasks.stop(patience.left()).await.map_err(failed)
    })
    .await
}

/// What an offloader by itself knows of the cluster: its own memory. The disks are the bookies'.
struct Budgets(Vec<ByteBudget>);

#[async_trait]
impl StatusSource for Budgets {
    async fn disk_bytes(&self, _: &BookieId) -> Option<u64> {
        None
    }

    fn budgets(&self) -> Vec<ByteBudget> {
        self.0.clone()
    }
}
