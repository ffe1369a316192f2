//! The read gateways that serve now: whoever needs one, and knows no endpoint, finds it here.
//!
//! A gateway holds its key under a lease. Two gateways of one name would be a mistake without harm: each writes its key anew when
//! it finds it gone, and the endpoint that stands there is one that serves.

use std::sync::Arc;

use crate::record::{RecordReader, RecordWriter};
use crate::{CommitError, Error, ErrorKind, Expect, Key, LeaseId, MetadataStore, Transaction, WatchStream, layout};

const TAG_ENDPOINT: u8 = 1;
const TAG_BOOKKEEPER: u8 = 2;
const ENDPOINT_BYTES_MAX: usize = 1024;
const LIST_PAGE: usize = 500;

/// A registered gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayInfo {
    /// Its name, one a running gateway.
    pub id: String,
    /// The URL of its gRPC front.
    pub endpoint: String,
    /// `host:port` where it answers BookKeeper's protocol for cold ids; `None` when it does not.
    pub bookkeeper: Option<String>,
}

impl GatewayInfo {
    fn encode(&self) -> Vec<u8> {
        let record = RecordWriter::new().bytes(TAG_ENDPOINT, self.endpoint.as_bytes());
        match &self.bookkeeper {
            Some(address) => record.bytes(TAG_BOOKKEEPER, address.as_bytes()).finish(),
            None => record.finish(),
        }
    }

    fn decode(id: &str, value: &[u8]) -> Result<Self, Error> {
        let record = RecordReader::open("gateway", value)?;
        let bookkeeper = if record.has(TAG_BOOKKEEPER) { Some(record.text(TAG_BOOKKEEPER)?) } else { None };
        Ok(Self { id: id.to_owned(), endpoint: record.text(TAG_ENDPOINT)?, bookkeeper })
    }
}

/// The gateways of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Gateways {
    store: Arc<dyn MetadataStore>,
}

impl Gateways {
    /// The gateways in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// Registers a gateway for as long as `lease` lives, in the place of what was registered under its name. May be repeated,
    /// also after an unknown outcome.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name with a slash or an endpoint that is too long; [`ErrorKind::LeaseGone`]; those of the store.
    pub async fn register(&self, gateway: &GatewayInfo, lease: LeaseId) -> Result<(), Error> {
        let key = layout::gateway_key(&gateway.id)?;
        for address in [Some(&gateway.endpoint), gateway.bookkeeper.as_ref()].into_iter().flatten() {
            if address.is_empty() || address.len() > ENDPOINT_BYTES_MAX {
                let text = format!("register gateway {}: an address is empty or longer than 1024 bytes", gateway.id);
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        }
        match self.store.commit(Transaction::new().put_leased(key, gateway.encode(), Expect::Any, lease)).await {
            Ok(_) => Ok(()),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => Err(error),
            Err(CommitError::Conflict { .. }) => {
                Err(Error::new(ErrorKind::Damaged, "register gateway: a put without a condition met a conflict"))
            }
        }
    }

    /// Whether a gateway stands there as given. A hint.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn is_registered(&self, gateway: &GatewayInfo) -> Result<bool, Error> {
        match self.store.get(&layout::gateway_key(&gateway.id)?).await? {
            None => Ok(false),
            Some(found) => Ok(GatewayInfo::decode(&gateway.id, &found.value)? == *gateway),
        }
    }

    /// A registered gateway, as a proof; `None` when there is none of that name.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`].
    pub async fn get_quorum(&self, id: &str) -> Result<Option<GatewayInfo>, Error> {
        let found = self.store.get_quorum(&layout::gateway_key(id)?).await?;
        found.map(|found| GatewayInfo::decode(id, &found.value)).transpose()
    }

    /// Watches the registrations.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn watch(&self) -> Result<WatchStream, Error> {
        self.store.watch(&layout::gateways_root()).await
    }

    /// All registered gateways, in the order of their names. A hint: one that has just died may be among them. A registration that
    /// cannot be read is logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self) -> Result<Vec<GatewayInfo>, Error> {
        let root = layout::gateways_root();
        let mut gateways = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let rows = self.store.list(&root, after.as_ref(), LIST_PAGE).await?;
            let Some((last, _)) = rows.last() else { return Ok(gateways) };
            after = Some(last.clone());
            for (key, found) in rows {
                let Some(id) = key.below(&root) else { continue };
                match GatewayInfo::decode(id, &found.value) {
                    Ok(gateway) => gateways.push(gateway),
                    Err(error) => {
                        tracing::error!(
                            gateway = id,
                            error = &error as &dyn std::error::Error,
                            "registration left out of the listing"
                        );
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::MemoryStore;

    fn gateway(id: &str, port: u16) -> GatewayInfo {
        GatewayInfo { id: id.to_owned(), endpoint: format!("http://10.0.0.1:{port}"), bookkeeper: None }
    }

    #[test]
    fn golden() {
        let alone = gateway("10.0.0.1:9600", 9600);
        assert_eq!(hex(&alone.encode()), "01010014687474703a2f2f31302e302e302e313a3936303017b6f0f2");
        assert_eq!(GatewayInfo::decode(&alone.id, &alone.encode()).unwrap(), alone);
        let both = GatewayInfo { bookkeeper: Some("10.0.0.1:3181".to_owned()), ..alone };
        let encoded = hex(&both.encode());
        let fields = "01010014687474703a2f2f31302e302e302e313a3936303002000d31302e302e302e313a33313831";
        assert_eq!(&encoded[..encoded.len() - 8], fields);
        assert_eq!(GatewayInfo::decode(&both.id, &both.encode()).unwrap(), both);
        assert_eq!(layout::gateway_key("10.0.0.1:9600").unwrap().as_str(), "/thermocline/gateways/10.0.0.1:9600");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_is_listed_while_its_lease_lives() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let gateways = Gateways::new(store.clone());
        let ttl = Duration::from_secs(10);
        let (first, second) = (store.grant_lease(ttl).await.unwrap(), store.grant_lease(ttl).await.unwrap());
        gateways.register(&gateway("b", 2), second).await.unwrap();
        gateways.register(&gateway("a", 1), first).await.unwrap();
        assert_eq!(gateways.list().await.unwrap(), [gateway("a", 1), gateway("b", 2)]);
        assert!(gateways.is_registered(&gateway("a", 1)).await.unwrap());
        assert!(!gateways.is_registered(&gateway("a", 3)).await.unwrap());
        store.revoke(first).await.unwrap();
        assert_eq!(gateways.list().await.unwrap(), [gateway("b", 2)]);
        assert!(!gateways.is_registered(&gateway("a", 1)).await.unwrap());
        tokio::time::sleep(ttl + Duration::from_secs(1)).await;
        assert_eq!(gateways.list().await.unwrap(), []);
        assert_eq!(gateways.register(&gateway("b", 2), second).await.unwrap_err().kind(), ErrorKind::LeaseGone);
    }

    #[tokio::test]
    async fn a_successor_under_the_same_name_keeps_its_registration_when_the_old_lease_ends() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let gateways = Gateways::new(store.clone());
        let ttl = Duration::from_secs(10);
        let (old, new) = (store.grant_lease(ttl).await.unwrap(), store.grant_lease(ttl).await.unwrap());
        gateways.register(&gateway("a", 1), old).await.unwrap();
        gateways.register(&gateway("a", 2), new).await.unwrap();
        store.revoke(old).await.unwrap();
        assert_eq!(gateways.list().await.unwrap(), [gateway("a", 2)]);
    }

    #[tokio::test]
    async fn what_is_no_name_or_endpoint_is_refused() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let gateways = Gateways::new(store.clone());
        let lease = store.grant_lease(Duration::from_secs(10)).await.unwrap();
        for bad in [gateway("a/b", 1), gateway("", 1), GatewayInfo { endpoint: String::new(), ..gateway("a", 1) }] {
            assert_eq!(gateways.register(&bad, lease).await.unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}
