//! Tells the cluster that the gateway is there, and where.

use std::sync::Arc;
use std::time::Duration;

use common::net::Offer;
use common::shutdown::TaskTree;
use metadata::{BookieInfo, Error, GatewayInfo, Gateways, LeaseId, MetadataStore};
use tokio::sync::watch;

use crate::ownership::{Ownership, Shards};

/// Life of the registration without a sign of life. It bounds how long cold ids lead to a gateway that died: they lead to another
/// one within 10 s, this time, the store's own and that of the others' look included.
pub(crate) const TTL: Duration = Duration::from_secs(6);
/// Pause between tries to register.
const RETRY: Duration = Duration::from_millis(500);

/// The registration of a gateway, and with it its part in owning cold ids.
pub struct Registration {
    store: Arc<dyn MetadataStore>,
    gateways: Gateways,
    gateway: GatewayInfo,
    offer: Offer,
    shards: Shards,
}

impl Registration {
    /// The registration of `gateway` in `store`. One that answers BookKeeper's protocol takes its share of the cold ids, and tells
    /// `shards` which; cold ids are registered with what it offers or asks of their readers.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>, gateway: GatewayInfo, offer: Offer, shards: Shards) -> Self {
        Self { gateways: Gateways::new(Arc::clone(&store)), store, gateway, offer, shards }
    }

    /// Registers, keeps the registration alive until `tasks` is asked to stop, then ends it. A registration that is lost is made
    /// anew, however long the metadata store is away meanwhile: the gateway serves what it can without it.
    pub async fn run(self, tasks: TaskTree) {
        let (lease, held) = watch::channel(None);
        let owning = async {
            if let Some(address) = &self.gateway.bookkeeper {
                let store = Arc::clone(&self.store);
                let info = BookieInfo { address: address.clone(), offer: self.offer.clone(), relays: false };
                Ownership::new(store, &self.gateway, info, self.shards.clone()).run(held, &tasks).await;
            }
        };
        tokio::join!(self.keep(&lease, &tasks), owning);
        // The lease takes registration and shards with it at once.
        if let Some(lease) = lease.send_replace(None)
            && let Err(error) = self.store.revoke(lease).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registration ends by itself");
        }
    }

    async fn keep(&self, lease: &watch::Sender<Option<LeaseId>>, tasks: &TaskTree) {
        let mut told = false;
        while !tasks.is_stopping() {
            let wait = match self.beat(lease).await {
                Ok(()) => {
                    if told {
                        tracing::info!(gateway = self.gateway.id, "the gateway is registered again");
                    }
                    told = false;
                    TTL / 3
                }
                Err(error) => {
                    // Once: an outage of metadata may last.
                    if !std::mem::replace(&mut told, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            gateway = self.gateway.id,
                            error,
                            "the gateway is not registered; it goes on serving and tries again"
                        );
                    }
                    RETRY
                }
            };
            tasks.token().run_until_cancelled(tokio::time::sleep(wait)).await;
        }
    }

    /// Brings the registration to what it should be.
    async fn beat(&self, lease: &watch::Sender<Option<LeaseId>>) -> Result<(), Error> {
        let held = *lease.borrow();
        if let Some(held) = held {
            match self.store.keep_alive(held).await {
                Ok(()) if self.gateways.is_registered(&self.gateway).await? => return Ok(()),
                Ok(()) => return self.gateways.register(&self.gateway, held).await,
                Err(error) if error.kind() == metadata::ErrorKind::LeaseGone => {
                    lease.send_replace(None);
                }
                Err(error) => return Err(error),
            }
        }
        let granted = self.store.grant_lease(TTL).await?;
        lease.send_replace(Some(granted));
        self.gateways.register(&self.gateway, granted).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metadata::{Expect, MemoryStore, layout};

    use super::*;

    async fn wait_for(gateways: &Gateways, count: usize) {
        let there = async {
            while gateways.list().await.unwrap().len() != count {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), there).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_stays_registered_until_it_stops() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let gateways = Gateways::new(store.clone());
        let gateway = GatewayInfo { id: "a".to_owned(), endpoint: "http://127.0.0.1:1".to_owned(), bookkeeper: None };
        let tasks = TaskTree::root("test");
        tasks.spawn(
            "registration",
            Registration::new(store.clone(), gateway.clone(), Offer::default(), Shards::default()).run(tasks.clone()),
        );
        wait_for(&gateways, 1).await;
        tokio::time::sleep(TTL * 5).await;
        assert_eq!(gateways.list().await.unwrap(), std::slice::from_ref(&gateway));
        store.delete_if(&layout::gateway_key("a").unwrap(), Expect::Present).await.unwrap();
        wait_for(&gateways, 1).await;
        tasks.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(gateways.list().await.unwrap(), [], "an orderly stop leaves nothing to wait for");
    }
}
