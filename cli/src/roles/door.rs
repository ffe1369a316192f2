//! The two ends of BookKeeper's wire that a role has: who may speak to it, and how it introduces itself to others.

use std::net::IpAddr;
use std::sync::Arc;

use common::clock::Clock;
use common::metrics::Set;
use common::net::{Connector, Listener, TcpConnector};
use common::shutdown::TaskTree;
use guard::{ConnectConfig, ConnectMetrics, ConnectTls, Guard, GuardConfig, GuardTls, Introduced};

use super::usage;
use crate::Fault;

/// Who stands before a role's BookKeeper front, which listens on `listen`; `None` when nothing is demanded.
///
/// # Errors
/// Settings that do not fit each other, and files that cannot be used.
pub(crate) async fn guard(config: &GuardConfig, listen: &str, clock: &Clock) -> Result<Option<Arc<Guard>>, Fault> {
    let guard = Guard::open(config, clock).await.map_err(usage)?;
    if Guard::takes_tokens_in_clear(config) && !is_loopback(listen) {
        eprintln!(
            "warning: tokens may be shown here without TLS, where everybody on the way can read them; set guard.tls to required"
        );
    }
    Ok(guard)
}

/// `listener` with the guard before it, if there is one.
pub(crate) fn guarded(guard: Option<&Arc<Guard>>, listener: Box<dyn Listener>, tasks: &TaskTree) -> Box<dyn Listener> {
    match guard {
        Some(guard) => guard.listen(listener, tasks),
        None => listener,
    }
}

/// The way to bookies and to gateways for cold ids, over TCP, and the metrics of its files.
///
/// # Errors
/// Settings that do not fit each other, and files that cannot be used.
pub(crate) async fn connector(config: &ConnectConfig, clock: &Clock) -> Result<(Arc<dyn Connector>, Set), Fault> {
    let metrics = ConnectMetrics::default();
    let connector = Introduced::over(Arc::new(TcpConnector), config, clock, &metrics).await.map_err(usage)?;
    Ok((connector, metrics.shown()))
}

/// Checks that a node that speaks to itself would let itself in.
///
/// # Errors
/// What to set.
pub(crate) fn fits(guard: &GuardConfig, connect: &ConnectConfig) -> Result<(), Fault> {
    match missing(guard, connect) {
        None => Ok(()),
        Some(what) => Err(Fault::usage(format!("the node's own gateway and offloader speak to its bookies: {what}"))),
    }
}

/// What to set so that whoever is introduced by `connect` gets in where `guard` stands.
pub(crate) fn missing(guard: &GuardConfig, connect: &ConnectConfig) -> Option<&'static str> {
    if guard.tls == GuardTls::Off && connect.tls != ConnectTls::Off {
        Some("connect.tls wants TLS, so set guard.tls, guard.certificate and guard.key")
    } else if guard.tls == GuardTls::Required && connect.tls == ConnectTls::Off {
        Some("guard.tls is required, so set connect.tls and connect.ca")
    } else if !guard.tokens.as_os_str().is_empty() && connect.token.as_os_str().is_empty() {
        Some("guard.tokens lets nobody in without a token, so set connect.token")
    } else if !guard.client_ca.as_os_str().is_empty() && connect.certificate.as_os_str().is_empty() {
        Some("guard.client_ca lets nobody in without a certificate, so set connect.certificate and connect.key")
    } else {
        None
    }
}

fn is_loopback(listen: &str) -> bool {
    let loopback =
        |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']);
    loopback(host) || loopback(listen)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_node_must_let_itself_in() {
        let path = || PathBuf::from("file");
        let (open, plain) = (GuardConfig::default(), ConnectConfig::default());
        assert!(fits(&open, &plain).is_ok());
        assert!(fits(&GuardConfig { tls: GuardTls::Offered, ..open.clone() }, &plain).is_ok());
        for (guard, named) in [
            (GuardConfig { tls: GuardTls::Required, ..open.clone() }, "connect.tls"),
            (GuardConfig { tokens: path(), ..open.clone() }, "connect.token"),
            (GuardConfig { client_ca: path(), ..open.clone() }, "connect.certificate"),
        ] {
            let fault = fits(&guard, &plain).unwrap_err();
            assert!(fault.to_string().contains(named) && fault.exit_code() == 2, "{fault}");
        }
        let wants = ConnectConfig { tls: ConnectTls::Required, ..plain.clone() };
        assert!(fits(&open, &wants).unwrap_err().to_string().contains("guard.tls"));
        let guard = GuardConfig { tls: GuardTls::Required, tokens: path(), client_ca: path(), ..open };
        let connect = ConnectConfig { tls: ConnectTls::Required, token: path(), certificate: path(), ..plain };
        assert!(fits(&guard, &connect).is_ok());
    }

    #[test]
    fn this_machine_is_told_from_the_network() {
        assert!(is_loopback("127.0.0.1:3181") && is_loopback("[::1]:3181") && is_loopback("localhost:1"));
        assert!(is_loopback("::1") && is_loopback("127.0.0.1"));
        assert!(!is_loopback("0.0.0.0:3181") && !is_loopback("10.0.0.1:3181") && !is_loopback("[::]:1"));
    }
}
