use std::sync::Arc;
use std::time::Duration;

use ledger::{EntryId, LedgerId};
use metadata::{GatewayInfo, Gateways, LeaseId, MemoryStore, MetadataStore};

use crate::error::ErrorKind;
use crate::{RegisteredProbe, ReleaseProbe};

const PATIENCE: Duration = Duration::from_millis(300);

async fn register(store: &Arc<dyn MetadataStore>, lease: LeaseId, id: &str, endpoint: String) {
    Gateways::new(store.clone()).register(&GatewayInfo { id: id.to_owned(), endpoint }, lease).await.unwrap();
}

#[tokio::test]
async fn without_a_gateway_the_release_waits_and_says_for_what() {
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
    let probe = RegisteredProbe::new(store, PATIENCE);
    let error = probe.read_cold(LedgerId::new(7).unwrap(), EntryId::ZERO, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.to_string().contains("ledger 7") && error.to_string().contains("no gateway is registered"),
        "{error}"
    );
}

#[tokio::test]
async fn gateways_that_are_dead_or_silent_are_tried_one_after_the_other() {
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    // One takes the connection and says nothing, the other is not there.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = format!("http://{}", silent.local_addr().unwrap());
    register(&store, lease, "a", silent_at.clone()).await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone_at = format!("http://{}", gone.local_addr().unwrap());
    register(&store, lease, "b", gone_at.clone()).await;
    drop(gone);
    let asked = tokio::spawn(async move { silent.accept().await });

    let probe = RegisteredProbe::new(store.clone(), PATIENCE);
    let reading = probe.read_cold(LedgerId::new(7).unwrap(), EntryId::ZERO, None);
    let error = tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap().unwrap_err();
    let _held_open_until_now = asked.await.unwrap().unwrap();
    assert!(error.to_string().contains(&gone_at), "the last one tried is named: {error}");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
}
