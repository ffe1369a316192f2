//! `thermocline gateway`: writes ledgers and reads them from whichever tier holds them, over gRPC.

use std::net::IpAddr;

use common::budget::ByteBudget;
use common::clock::Clock;
use common::net::{Listener as _, Offer, TcpListener};
use common::rng::Rng;
use common::shutdown::TaskTree;
use guard::Guard;
use metadata::{GatewayInfo, Ledgers};
use read_gateway::{GatewayConfig, GatewayParts, LedgersService, Registration};

use super::compose::{self, ClientOf};
use super::{Watched, advertised, door, failed, front, is_for_all, serve_until_told, usage};
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
    let listener_address = listener.address();
    let address = advertised("gateway", &listener_address, &settings.advertise)?;
    let cold_ids = bind_bookkeeper(&settings.bookkeeper_listen, &settings.listen).await?;
    let bookkeeper = match &cold_ids {
        Some(listener) => {
            let bound = listener.address();
            Some(advertised_cold_ids(&bound, &settings.bookkeeper_advertise, &listener_address, &address)?)
        }
        None => None,
    };
    let (clock, rng) = (Clock::system(), Rng::from_os());
    let (connector, connecting) = door::connector(&settings.connect, &clock).await?;
    let bound = cold_ids.as_ref().map_or_else(String::new, |listener| listener.address());
    let guard = door::guard(&settings.guard, &bound, &clock).await?;
    let root = TaskTree::root("gateway");
    let watched = Watched::start("gateway", &root, &settings.admin, &settings.listen).await?;
    watched.admin.metrics.add(connecting);
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

/// Where clients reach the front for cold ids, which is registered for them: the advertised address; else what was bound, at the
/// host that the gateway itself is told to others by where both take connections at the same host. `gateway_bound` is what the
/// gateway's own front was bound to, `gateway` what others are told.
fn advertised_cold_ids(bound: &str, advertise: &str, gateway_bound: &str, gateway: &str) -> Result<String, Fault> {
    let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.to_owned()).unwrap_or_default();
    if !advertise.is_empty() {
        return advertised("gateway", bound, advertise).map_err(|_| {
            Fault::usage(format!(
                "bookkeeper_advertise {advertise}: write the host and port that clients reach, as in 10.0.0.7:3181"
            ))
        });
    }
    let (here, told) = (host(bound), host(gateway));
    let all = is_for_all(&here);
    if !all && here != host(gateway_bound) {
        return Ok(bound.to_owned());
    }
    let is_loopback = told == "localhost"
        || told.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if all && (is_loopback || is_for_all(&told)) {
        return Err(Fault::usage(format!(
            "bookkeeper_listen {bound} takes connections on every address, but cold ids must be registered at one, and the gateway is \
             told to others as {gateway}: set bookkeeper_advertise = \"HOST:PORT\""
        )));
    }
    let port = bound.rsplit_once(':').map_or("", |(_, port)| port);
    Ok(format!("{told}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_an_address_beside_the_gateways_own() {
        assert_eq!(beside("0.0.0.0:9600"), "0.0.0.0:0");
        assert_eq!(beside("[::1]:9600"), "[::1]:0");
        let told = |bound, advertise, own, gateway| advertised_cold_ids(bound, advertise, own, gateway);
        let all = "0.0.0.0:41000";
        let beside = told(all, "", "0.0.0.0:9600", "gw1.example:9600").unwrap();
        assert_eq!(beside, "gw1.example:41000");
        let beside = told("10.0.0.5:41000", "", "10.0.0.5:9600", "gw1.example:9600").unwrap();
        assert_eq!(beside, "gw1.example:41000");
        assert_eq!(told("127.0.0.1:5", "", "127.0.0.1:9600", "127.0.0.1:9600").unwrap(), "127.0.0.1:5");
        let elsewhere = told("10.0.0.5:3181", "", "127.0.0.1:9600", "127.0.0.1:9600").unwrap();
        assert_eq!(elsewhere, "10.0.0.5:3181", "nobody listens at this port of loopback");
        assert_eq!(told(all, "vip.example:3181", "127.0.0.1:9600", "127.0.0.1:9600").unwrap(), "vip.example:3181");
        for (bound, advertise, gateway) in [
            (all, "vip.example", "gw1.example:9600"),
            (all, "0.0.0.0:3181", "gw1.example:9600"),
            (all, "", "127.0.0.1:9600"),
            ("[::]:41000", "", "[::1]:9600"),
            (all, "", "localhost:9600"),
        ] {
            let fault = told(bound, advertise, gateway, gateway).unwrap_err();
            assert_eq!(fault.exit_code(), 2);
            assert!(fault.to_string().contains("bookkeeper_advertise"), "{fault}");
        }
    }

    #[tokio::test]
    async fn the_front_for_cold_ids_can_be_switched_off() {
        assert!(bind_bookkeeper("off", "127.0.0.1:0").await.unwrap().is_none());
        let bound = bind_bookkeeper("", "127.0.0.1:9600").await.unwrap().unwrap();
        assert!(bound.address().starts_with("127.0.0.1:") && !bound.address().ends_with(":9600"));
    }
}
