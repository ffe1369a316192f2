//! From a URI to a store: the only place that knows drivers.

use std::sync::Arc;

use crate::{EmbeddedStore, Error, ErrorKind, EtcdStore, MemoryStore, MetadataStore};

const SUPPORTED: &str =
    "this release supports etcd://host:port/root (etcds:// with TLS), embedded:/path/to/directory and memory:";

/// Opens the store that `uri` names: `etcd://host:port,host:port/root` (a cluster's), `embedded:/path` (one process) or `memory:`
/// (forgotten at the end, for tests). Waits at most seconds, whatever the store does.
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
        "etcd" | "etcds" => Ok(Arc::new(EtcdStore::open(uri).await?)),
        _ => Err(Error::new(ErrorKind::Unsupported, format!("open metadata store {uri:?}: {SUPPORTED}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn knows_its_drivers_and_names_them() {
        open("memory:").await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        open(&format!("embedded:{}", dir.path().join("a/b").display())).await.unwrap();
        for uri in ["zk://127.0.0.1/ledgers", "", "memory:x"] {
            let error = open(uri).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("supports etcd://host:port/root"), "{error}");
        }
        assert!(open("embedded:").await.err().unwrap().to_string().contains("needs a directory"));
        assert_eq!(open("etcd://").await.err().unwrap().kind(), ErrorKind::Invalid);
    }
}
