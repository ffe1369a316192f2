//! `thermocline gateway`: writes ledgers and reads them from whichever tier holds them, over gRPC.

use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::Listener as _;
use common::rng::Rng;
use common::shutdown::TaskTree;
use metadata::{GatewayInfo, Ledgers};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService, Registration};

use super::compose::{self, ClientOf};
use super::{Watched, advertised, failed, front, serve_until_told, usage};
use crate::args::GatewayArgs;
use crate::fault::chain;
use crate::settings::{self, GatewaySettings};
use crate::{Fault, admin};

/// Runs a gateway to its end.
pub(crate) async fn run(args: GatewayArgs) -> Result<(), Fault> {
    let settings = settings::load::<GatewaySettings>(&args.config, &args.flags())?.value;
    settings.gateway.validate().map_err(usage)?;
    let cold_url = compose::cold_url(&settings.cold)?;
    let memory_max = settings.memory_max.bytes();
    let client_bytes = compose::client_bytes(memory_max, memory(&settings.gateway), "gateway")?;
    let listener = front::bind(&settings.listen).await?;
    let address = advertised("gateway", &listener.address(), &settings.advertise)?;
    let root = TaskTree::root("gateway");
    let watched = Watched::start("gateway", &root, &settings.admin, &settings.listen).await?;
    let (clock, rng) = (Clock::system(), Rng::from_os());
    let (metadata, instance) = compose::metadata(&settings.metadata, &rng, &watched.admin.metrics).await?;
    let cold = compose::cold(&cold_url, &rng, &watched.admin.metrics).await?;

    let (registered, serving, client_tasks) = (root.child("registration"), root.child("front"), root.child("client"));
    let budget = ByteBudget::new("node", memory_max);
    let of = ClientOf {
        metadata: metadata.clone(),
        clock: &clock,
        rng: &rng,
        budget: &budget,
        bytes: client_bytes,
        tasks: client_tasks.clone(),
        metrics: &watched.admin.metrics,
    };
    let client = compose::client(of, settings.client);
    let parts = GatewayParts {
        client,
        ledgers: Ledgers::new(metadata.clone()),
        cold,
        instance_id: instance.as_str().to_owned(),
        budget: budget.clone(),
        tasks: serving.clone(),
    };
    let gateway = LedgersService::new(parts, settings.gateway);
    let budgets: Vec<ByteBudget> = std::iter::once(budget).chain(gateway.budgets().iter().cloned()).collect();
    watched.admin.metrics.add(gateway.metrics());
    watched.admin.metrics.add(admin::metrics::budgets(&budgets));
    front::serve(listener, &serving, Some(gateway.clone()), None).await?;

    let endpoint = format!("http://{address}");
    let id = if settings.id.is_empty() { address } else { settings.id };
    let info = GatewayInfo { id: id.clone(), endpoint: endpoint.clone() };
    registered.spawn("registration", Registration::new(metadata, info).run(registered.clone()));
    let facts = [("id", id.as_str()), ("endpoint", endpoint.as_str())];
    serve_until_told("gateway", &facts, watched, root, async |patience| {
        // First of all nobody new is sent here.
        registered.stop(patience.left()).await.map_err(failed)?;
        // A ledger that cannot be closed now is recovered when somebody closes it: no reason to keep the process from stopping.
        if let Err(error) = gateway.close_writers(patience.left() / 2).await {
            tracing::warn!(error = chain(&error), "some ledgers stay open");
        }
        serving.stop(patience.left()).await.map_err(failed)?;
        client_tasks.stop(patience.left()).await.map_err(failed)
    })
    .await
}

/// What the parts of a gateway may hold.
pub(crate) fn memory(config: &GatewayConfig) -> u64 {
    config.cache_bytes.bytes() + config.footer_cache_bytes.bytes() + config.send_bytes.bytes()
}
