//! Tells the cluster that the gateway is there, and where.

use std::sync::Arc;
use std::time::Duration;

use common::shutdown::TaskTree;
use metadata::{Error, GatewayInfo, Gateways, LeaseId, MetadataStore};

/// Life of the registration without a sign of life. Whoever meets a dead gateway meanwhile tries the next one.
const TTL: Duration = Duration::from_secs(10);
/// Pause between tries to register.
const RETRY: Duration = Duration::from_millis(500);

/// The registration of a gateway.
pub struct Registration {
    store: Arc<dyn MetadataStore>,
    gateways: Gateways,
    gateway: GatewayInfo,
}

impl Registration {
    /// The registration of `gateway` in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>, gateway: GatewayInfo) -> Self {
        Self { gateways: Gateways::new(Arc::clone(&store)), store, gateway }
    }

    /// Registers, keeps the registration alive until `tasks` is asked to stop, then ends it. A registration that is lost is made
    /// anew, however long the metadata store is away meanwhile: the gateway serves what it can without it.
    pub async fn run(self, tasks: TaskTree) {
        let stop = tasks.token().clone();
        let mut lease = None;
        let mut told = false;
        while !stop.is_cancelled() {
            let wait = match self.beat(&mut lease).await {
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
            stop.run_until_cancelled(tokio::time::sleep(wait)).await;
        }
        if let Some(lease) = lease
            && let Err(error) = self.store.revoke(lease).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registration ends by itself");
        }
    }

    /// Brings the registration to what it should be.
    async fn beat(&self, lease: &mut Option<LeaseId>) -> Result<(), Error> {
        if let Some(held) = *lease {
            match self.store.keep_alive(held).await {
                Ok(()) if self.gateways.is_registered(&self.gateway).await? => return Ok(()),
                Ok(()) => return self.gateways.register(&self.gateway, held).await,
                Err(error) if error.kind() == metadata::ErrorKind::LeaseGone => *lease = None,
                Err(error) => return Err(error),
            }
        }
        let granted = self.store.grant_lease(TTL).await?;
        *lease = Some(granted);
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
        let gateway = GatewayInfo { id: "a".to_owned(), endpoint: "http://127.0.0.1:1".to_owned() };
        let tasks = TaskTree::root("test");
        tasks.spawn("registration", Registration::new(store.clone(), gateway.clone()).run(tasks.clone()));
        wait_for(&gateways, 1).await;
        tokio::time::sleep(TTL * 5).await;
        assert_eq!(gateways.list().await.unwrap(), std::slice::from_ref(&gateway));
        store.delete_if(&layout::gateway_key("a").unwrap(), Expect::Present).await.unwrap();
        wait_for(&gateways, 1).await;
        tasks.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(gateways.list().await.unwrap(), [], "an orderly stop leaves nothing to wait for");
    }
}
