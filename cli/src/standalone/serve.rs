//! The standalone node's front: gateway and offloader behind one listener.

use std::sync::Arc;

use client::Client;
use cold::ColdStore;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::metrics::Set;
use common::net::{Connector, Listener, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use metadata::{GatewayInfo, InstanceId, Ledgers, MetadataStore};
use offloader::{ClientSource, Offloader, OffloaderParts, StepObserver, TieringService, WireProbe};
use read_gateway::{GatewayParts, LedgersService, Registration};

use super::status::{NodeStatus, SharedBookies};
use super::usage;
use crate::roles::{front, is_for_all};
use crate::{Fault, Settings};

/// What the front is made of.
pub(super) struct FrontParts {
    pub(super) listener: TcpListener,
    /// Of the BookKeeper front, unless that is switched off.
    pub(super) cold_ids: Option<Box<dyn Listener>>,
    /// The way to bookies and cold ids.
    pub(super) connector: Arc<dyn Connector>,
    pub(super) metadata: Arc<dyn MetadataStore>,
    pub(super) instance: InstanceId,
    pub(super) cold: ColdStore,
    pub(super) client: Client,
    pub(super) bookies: SharedBookies,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
    pub(super) budget: ByteBudget,
    pub(super) tasks: TaskTree,
    pub(super) observer: Arc<dyn StepObserver>,
}

/// Where the front is reached, and the gateway whose writers an orderly stop closes.
pub(super) struct Front {
    pub(super) endpoint: String,
    pub(super) gateway: LedgersService,
    /// The budgets of all roles.
    pub(super) budgets: Vec<ByteBudget>,
    /// The metrics of gateway and offloader.
    pub(super) metrics: Set,
}

/// Builds the services and serves them until `tasks` is asked to stop.
pub(super) async fn start(settings: &Settings, parts: FrontParts) -> Result<Front, Fault> {
    let FrontParts {
        listener,
        cold_ids,
        connector,
        metadata,
        instance,
        cold,
        client,
        bookies,
        clock,
        rng,
        budget,
        tasks,
        observer,
    } = parts;
    let address = listener.address();
    let endpoint = format!("http://{address}");

    settings.gateway.validate().map_err(usage)?;
    let gateway = LedgersService::new(
        GatewayParts {
            client: client.clone(),
            ledgers: Ledgers::new(metadata.clone()),
            cold: cold.clone(),
            instance_id: instance.as_str().to_owned(),
            budget: budget.clone(),
            tasks: tasks.clone(),
        },
        settings.gateway.clone(),
    );
    let bookkeeper = match &cold_ids {
        // Of a node that takes connections on every address, clients know the host of its bookies.
        Some(listener) => {
            let bound = listener.address();
            let (host, port) = bound.rsplit_once(':').unwrap_or((&bound, ""));
            let told = if is_for_all(host) { &settings.bookie_host } else { host };
            Some(format!("{told}:{port}")).filter(|_| !is_for_all(told))
        }
        None => None,
    };
    if cold_ids.is_some() && bookkeeper.is_none() {
        return Err(Fault::usage(
            "the node takes connections on every address, but cold ids must be registered at one: set bookie_host to what others reach, \
             or bookkeeper_listen to off"
                .to_owned(),
        ));
    }
    let info = GatewayInfo { id: address, endpoint: endpoint.clone(), bookkeeper };
    let offer = cold_ids.as_ref().map(|listener| listener.offer()).unwrap_or_default();
    let registration = Registration::new(metadata.clone(), info, offer, gateway.shards());
    let patience = settings.offloader.registration_patience();
    let offloader = Offloader::new(
        OffloaderParts {
            probe: Arc::new(WireProbe::new(metadata.clone(), connector, patience)),
            metadata,
            cold,
            instance_id: instance,
            entries: Arc::new(ClientSource::new(client)),
            clock,
            rng,
            budget: budget.clone(),
            tasks: tasks.clone(),
            observer,
        },
        settings.offloader.clone(),
    )
    .map_err(usage)?;

    let mut budgets = vec![budget];
    budgets.extend(gateway.budgets().iter().cloned());
    budgets.push(offloader.budget().clone());
    let mut metrics = gateway.metrics();
    metrics.add(offloader.metrics());
    let status = Arc::new(NodeStatus::new(bookies, budgets.clone()));
    let tiering = TieringService::new(offloader.clone(), status, env!("CARGO_PKG_VERSION"));

    front::serve(listener, &tasks, Some(gateway.clone()), Some(tiering)).await?;
    if let Some(listener) = cold_ids {
        gateway.serve_bookkeeper(listener);
    }
    tasks.spawn("registration", registration.run(tasks.clone()));
    offloader.start();
    Ok(Front { endpoint, gateway, budgets, metrics })
}
