//! From a URI to a store: the only place that knows drivers.

use std::sync::Arc;

use crate::{EmbeddedStore, Error, ErrorKind, EtcdStore, MemoryStore, MetadataStore, ZooKeeperStore};

const SUPPORTED: &str = "this release supports etcd://host:port/root (etcds:// with TLS, etcd+apache:// for a new cluster as BookKeeper's driver has it), zk://host:port/ledgers, embedded:/path/to/directory and memory:";

/// Opens the store that `uri` names: `etcd://host:port,host:port/root` or `zk://host:port,host:port/ledgers` (a cluster's),
/// `embedded:/path` (one process) or `memory:` (forgotten at the end, for tests). Waits at most seconds, whatever the store does.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for another driver, with a list of what is supported; those of the driver.
pub async fn open(uri: &str) -> Result<Arc<dyn MetadataStore>, Error> {
    let (driver, place) = uri.split_once(':').unwrap_or((uri, ""));
    match driver {
        "memory" if place.is_empty() => Ok(Arc::new(MemoryStore::new())),
        "embedded" if !place.is_empty() => Ok(Arc::new(EmbeddedStore::open(place).await?)),
        "embedded" => Err(Error::new(
            ErrorKind::Unsupported,
            "open metadata store: embedded: needs a directory, as in embedded:/path",
        )),
        _ if ["etcd", "etcds"].contains(&driver.split('+').next().unwrap_or_default()) => {
            Ok(Arc::new(EtcdStore::open(uri).await?))
        }
        "zk" => Ok(Arc::new(ZooKeeperStore::open(uri).await?)),
        _ if driver.starts_with("zk+") => Ok(Arc::new(ZooKeeperStore::open(uri).await?)),
        _ => Err(Error::new(ErrorKind::Unsupported, format!("open metadata store {:?}: {SUPPORTED}", shown(uri)))),
    }
}

/// The URI for messages: without user and password, which no driver takes from it but which people write there.
#[must_use]
pub fn shown(uri: &str) -> String {
    let Some((driver, place)) = uri.split_once("://") else { return uri.to_owned() };
    let (authority, root) = match place.find('/') {
        // An `@` behind the first slash may still belong to a password with a slash in it.
        Some(slash) if !place[slash..].contains('@') => place.split_at(slash),
        _ => (place, ""),
    };
    let hosts: Vec<&str> = authority.split([',', ';']).map(|host| host.rsplit('@').next().unwrap_or(host)).collect();
    match authority.contains('@') {
        true => format!("{driver}://…@{}{root}", hosts.last().unwrap_or(&"")),
        false => uri.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (uri, want) in [
            ("etcd://a:1,b:2/root", "etcd://a:1,b:2/root"),
            ("embedded:/data/a@b", "embedded:/data/a@b"),
            ("etcd://root:hunter2@a:1/x", "etcd://…@a:1/x"),
            ("zk://root:hun/ter2@a:1", "zk://…@a:1"),
            ("etcd://u:hunter2,@a:1,b:2", "etcd://…@b:2"),
            ("zk+flat://u:hunter2@a:1;b:2/l", "zk+flat://…@b:2/l"),
            ("etcd://u:hunter2@a:1,v:hunter2@b:2", "etcd://…@b:2"),
        ] {
            assert_eq!(shown(uri), want);
        }
    }

    #[tokio::test]
    async fn an_unknown_driver_is_refused_without_its_secrets() {
        let error = open("zk://root:hunter2@a:1").await.err().unwrap();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn knows_its_drivers_and_names_them() {
        open("memory:").await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        open(&format!("embedded:{}", dir.path().join("a/b").display())).await.unwrap();
        for uri in ["zookeeper://127.0.0.1/ledgers", "", "memory:x"] {
            let error = open(uri).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("supports etcd://host:port/root"), "{error}");
        }
        assert!(open("embedded:").await.err().unwrap().to_string().contains("needs a directory"));
        assert_eq!(open("etcd://").await.err().unwrap().kind(), ErrorKind::Invalid);
        assert_eq!(open("zk+flat://").await.err().unwrap().kind(), ErrorKind::Invalid);
    }
}
