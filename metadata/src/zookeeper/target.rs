//! Which ZooKeeper: the URI, as BookKeeper writes it.

use crate::{Error, ErrorKind, Key, LedgerLayout};

const PORT: u16 = 2181;
const ROOT: &str = "/ledgers";

/// Members, root and layout, as in `zk+hierarchical://host:port,host:port/ledgers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`, at least one.
    pub(crate) endpoints: Vec<String>,
    /// Where BookKeeper's tree is: a path that begins with a slash.
    pub(crate) root: String,
    /// The layout that the URI wants; `None`: whatever the cluster has.
    pub(crate) layout: Option<LedgerLayout>,
}

impl Target {
    /// Takes a URI apart. Messages never repeat one that holds a password.
    pub(crate) fn parse(uri: &str) -> Result<Self, Error> {
        let refuse = |fault: &str| Err(Error::new(ErrorKind::Invalid, format!("read ZooKeeper URI: {fault}")));
        let Some((scheme, place)) = uri.split_once("://") else { return refuse("it does not begin with zk://") };
        let layout = match scheme {
            "zk" | "zk+null" => None,
            "zk+hierarchical" => Some(LedgerLayout::Hierarchical),
            "zk+longhierarchical" => Some(LedgerLayout::LongHierarchical),
            "zk+flat" => Some(LedgerLayout::Flat),
            _ => {
                return refuse(
                    "it does not begin with zk://, zk+hierarchical://, zk+longhierarchical:// or zk+flat://",
                );
            }
        };
        if place.contains('@') {
            return refuse("it names a user; ZooKeeper's URIs take none, and secrets do not belong into them");
        }
        if place.contains(['?', '#']) {
            return refuse(&format!("{uri:?} has options, ZooKeeper takes none"));
        }
        let (hosts, root) = place.find('/').map_or((place, ""), |slash| place.split_at(slash));
        let root = match root.trim_end_matches('/') {
            "" => ROOT,
            root => root,
        };
        let plain = |root: &str| root.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        if Key::new(root).is_err() || !plain(root) || root.split('/').any(|part| part == "." || part == "..") {
            return refuse(&format!("its root {root:?} is no path of plain characters"));
        }
        if root == "/zookeeper" || root.starts_with("/zookeeper/") {
            return refuse("its root lies below /zookeeper, which ZooKeeper keeps for itself");
        }
        let mut endpoints = Vec::new();
        for host in hosts.split([',', ';']) {
            let Some(endpoint) = endpoint(host) else {
                return refuse(&format!("{host:?} is no host:port, as in zk://10.0.0.1:2181,10.0.0.2:2181/ledgers"));
            };
            endpoints.push(endpoint);
        }
        Ok(Self { endpoints, root: root.to_owned(), layout })
    }
}

/// `host:port` with the port that ZooKeeper's clients use by default; `None` for what is neither.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        // An address of IPv6 without a port ends in its bracket.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, PORT),
    };
    let plain = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':');
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = bracketed.map_or(plain, |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (fits && port != 0).then(|| format!("{host}:{port}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_those_of_bookkeeper() {
        for (uri, endpoints, root, layout) in [
            ("zk://a:1/x/y", &["a:1"][..], "/x/y", None),
            ("zk://a", &["a:2181"], "/ledgers", None),
            ("zk://a/", &["a:2181"], "/ledgers", None),
            ("zk+null://a:1,b:2/ledgers/", &["a:1", "b:2"], "/ledgers", None),
            (
                "zk+hierarchical://a:1;b:2;[::1]/l",
                &["a:1", "b:2", "[::1]:2181"],
                "/l",
                Some(LedgerLayout::Hierarchical),
            ),
            ("zk+longhierarchical://[::1]:5/l", &["[::1]:5"], "/l", Some(LedgerLayout::LongHierarchical)),
            ("zk+flat://a:1/l", &["a:1"], "/l", Some(LedgerLayout::Flat)),
        ] {
            let want = Target {
                endpoints: endpoints.iter().map(ToString::to_string).collect(),
                root: root.to_owned(),
                layout,
            };
            assert_eq!(Target::parse(uri).unwrap(), want, "{uri}");
        }
    }

    #[test]
    fn others_are_refused_without_their_secrets() {
        for uri in [
            "zk:a:1",
            "zookeeper://a:1",
            "zk+ms://a:1",
            "zk://",
            "zk://a:0",
            "zk://a:x",
            "zk://a:1,,b:1",
            "zk://a:1//x",
            "zk://a:1/x/../y",
            "zk://a:1/zookeeper/x",
            "zk://a:1/x y",
            "zk://a:1/x?y",
            "zk://root:hunter2@a:1/x",
            "zk+ms://root:hunter2@a:1/x",
        ] {
            let error = Target::parse(uri).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{uri}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
