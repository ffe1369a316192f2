//! `thermocline gateway`: writes ledgers and reads them from whichever tier holds them, over gRPC.

use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{Listener as _, Offer, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use guard::Guard;
use metadata::{GatewayInfo, Ledgers};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService, Registration};

use super::compose::{self, ClientOf};
use super::{Watched, advertised, door, failed, front, serve_until_told, usage};
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
    let cold_ids = bind_bookkeeper(&settings.bookkeeper_listen, &settings.listen).await?;
    let bookkeeper = match &cold_ids {
        Some(listener) => Some(advertised_bookkeeper(&listener.address(), &settings.bookkeeper_advertise, &address)?),
        None => None,
    };
    let (clock, rng) = (Clock::system(), Rng::from_os());
    let connector = door::connector(&settings.connect, &clock).await?;
    let bound = cold_ids.as_ref().map_or_else(String::new, |listener| listener.address());
    let guard = door::guard(&settings.guard, &bound, &clock).await?;
    let root = TaskTree::root("gateway");
    let watched = Watched::start("gateway", &root, &settings.admin, &settings.listen).await?;
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
        connector,
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
    let mut offer = Offer::default();
    if let Some(listener) = cold_ids {
        let listener = door::guarded(guard.as_ref(), Box::new(listener), &serving);
        offer = listener.offer();
        gateway.serve_bookkeeper(listener);
    }
    watched.admin.metrics.add(Guard::metrics(guard.as_ref()));

    let endpoint = format!("http://{address}");
    let id = if settings.id.is_empty() { address } else { settings.id };
    let info = GatewayInfo { id: id.clone(), endpoint: endpoint.clone(), bookkeeper: bookkeeper.clone() };
    let registration = Registration::new(metadata, info, offer, gateway.shards());
    registered.spawn("registration", registration.run(registered.clone()));
    let mut facts = vec![("id", id.as_str()), ("endpoint", endpoint.as_str())];
    facts.extend(bookkeeper.as_deref().map(|address| ("bookkeeper", address)));
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
    let parts = [config.cache_bytes, config.footer_cache_bytes, config.send_bytes, config.ends_bytes];
    parts.iter().map(|part| part.bytes()).sum()
}

/// Binds the front for cold ids; `None` when it is switched off. `listen` is the address of the gRPC front.
pub(crate) async fn bind_bookkeeper(setting: &str, listen: &str) -> Result<Option<TcpListener>, Fault> {
    match setting {
        "off" => Ok(None),
        "" => Ok(Some(front::bind(&beside(listen)).await?)),
        address => Ok(Some(front::bind(address).await?)),
    }
}

/// A port of the system's choosing on the host of `listen`.
fn beside(listen: &str) -> String {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    format!("{host}:0")
}

/// Where clients reach the front for cold ids. `gateway` is the address that the gateway itself registers.
fn advertised_bookkeeper(bound: &str, advertise: &str, gateway: &str) -> Result<String, Fault> {
    let (host, port) = (gateway.rsplit_once(':'), bound.rsplit_once(':'));
    match (advertise, host, port) {
        ("", Some((host, _)), Some((_, port))) => Ok(format!("{host}:{port}")),
        _ => advertised("gateway", bound, advertise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_an_address_beside_the_gateways_own() {
        assert_eq!(beside("0.0.0.0:9600"), "0.0.0.0:0");
        assert_eq!(beside("[::1]:9600"), "[::1]:0");
        let told = |advertise| advertised_bookkeeper("0.0.0.0:41000", advertise, "gw1.example:9600");
        assert_eq!(told("").unwrap(), "gw1.example:41000");
        assert_eq!(told("vip.example:3181").unwrap(), "vip.example:3181");
        assert_eq!(told("vip.example").unwrap_err().exit_code(), 2);
    }

    #[tokio::test]
    async fn the_front_for_cold_ids_can_be_switched_off() {
        assert!(bind_bookkeeper("off", "127.0.0.1:0").await.unwrap().is_none());
        let bound = bind_bookkeeper("", "127.0.0.1:9600").await.unwrap().unwrap();
        assert!(bound.address().starts_with("127.0.0.1:") && !bound.address().ends_with(":9600"));
    }
}
