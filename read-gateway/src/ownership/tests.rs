use common::net::Offer;
use ledger::COLD_SHARDS;
use metadata::{Bookies, MemoryStore};

use super::*;
use crate::Registration;

/// Within which cold ids lead to a living gateway again.
const TAKEN_OVER: Duration = Duration::from_secs(10);

struct Cluster {
    store: Arc<dyn MetadataStore>,
    cold: ColdShards,
}

impl Cluster {
    fn new() -> Self {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        Self { cold: ColdShards::new(store.clone()), store }
    }

    async fn name(&self, members: u32) {
        let names = ColdNames { domain: "cold.thermocline".to_owned(), port: 3181, members };
        self.cold.ensure_names(&names).await.unwrap();
    }

    fn start(&self, id: &str) -> Gateway {
        let address = format!("{id}:3181");
        let info =
            GatewayInfo { id: id.to_owned(), endpoint: format!("http://{id}:9600"), bookkeeper: Some(address.clone()) };
        let (tasks, shards) = (TaskTree::root("gateway"), Shards::default());
        let running = tokio::spawn(
            Registration::new(self.store.clone(), info, Offer::default(), shards.clone()).run(tasks.clone()),
        );
        Gateway { address, tasks, shards, running }
    }

    /// How many ids lead to each address.
    async fn addresses(&self) -> BTreeMap<String, usize> {
        let mut addresses = BTreeMap::new();
        for (id, info, writable) in Bookies::new(self.store.clone()).list().await.unwrap() {
            assert!(ledger::is_cold(&id) && !writable, "{id}");
            *addresses.entry(info.address).or_default() += 1;
        }
        addresses
    }

    /// Waits until the ids are spread so; returns how long it took.
    async fn spread(&self, wanted: &[(&Gateway, usize)]) -> Duration {
        let wanted: BTreeMap<String, usize> =
            wanted.iter().map(|(gateway, ids)| (gateway.address.clone(), *ids)).collect();
        let began = Instant::now();
        while self.addresses().await != wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}, not {wanted:?}", self.addresses().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        began.elapsed()
    }
}

struct Gateway {
    address: String,
    tasks: TaskTree,
    shards: Shards,
    running: tokio::task::JoinHandle<()>,
}

impl Gateway {
    /// Dies without a word.
    async fn die(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    async fn stop(self) {
        self.tasks.ask_to_stop();
        self.running.await.unwrap();
        assert!(self.shards.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_registered_before_the_ids_have_names() {
    let cluster = Cluster::new();
    let gateway = cluster.start("a");
    while gateway.shards.len() < usize::from(COLD_SHARDS) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(cluster.addresses().await, BTreeMap::new());
    cluster.name(3).await;
    cluster.spread(&[(&gateway, 192)]).await;
    // A larger ensemble is released: its members get ids too, at once.
    cluster.name(5).await;
    let waited = cluster.spread(&[(&gateway, 320)]).await;
    assert!(waited < Duration::from_secs(1), "the names are watched: {waited:?}");
    assert_eq!(gateway.shards.moved().get(), 320, "what stands is not written again");
}

#[tokio::test(start_paused = true)]
async fn a_second_gateway_takes_half_and_a_death_gives_it_all() {
    let cluster = Cluster::new();
    cluster.name(3).await;
    let first = cluster.start("a");
    cluster.spread(&[(&first, 192)]).await;
    let second = cluster.start("b");
    cluster.spread(&[(&first, 96), (&second, 96)]).await;
    assert_eq!((first.shards.len(), second.shards.len()), (32, 32));
    let address = first.address.clone();
    first.die().await;
    assert_eq!(cluster.addresses().await[&address], 96, "its registrations outlive it");
    let waited = cluster.spread(&[(&second, 192)]).await;
    assert!(waited <= TAKEN_OVER, "{waited:?}");
    assert!((0..COLD_SHARDS).all(|shard| second.shards.contains(shard)));
    second.stop().await;
    assert_eq!(cluster.addresses().await.into_values().sum::<usize>(), 192, "nor does a stop take them away");
}

#[tokio::test(start_paused = true)]
async fn a_rolling_restart_leaves_every_id_at_a_living_gateway() {
    let cluster = Cluster::new();
    cluster.name(3).await;
    let mut gateways = Vec::new();
    for id in ["a", "b", "c"] {
        gateways.push(cluster.start(id));
    }
    let fair = async |gateways: &[Gateway]| {
        let began = Instant::now();
        loop {
            let addresses = cluster.addresses().await;
            let here: Vec<usize> =
                gateways.iter().map(|gateway| addresses.get(&gateway.address).copied().unwrap_or_default()).collect();
            if here.iter().sum::<usize>() == 192 && here.iter().all(|ids| (63..=66).contains(ids)) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{addresses:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    fair(&gateways).await;
    for place in 0..gateways.len() {
        let id = gateways[place].address.split(':').next().unwrap().to_owned();
        gateways.remove(place).stop().await;
        let began = Instant::now();
        while cluster.addresses().await.contains_key(&format!("{id}:3181")) {
            assert!(began.elapsed() <= TAKEN_OVER, "ids lead to a gateway that stopped");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        gateways.insert(place, cluster.start(&id));
        fair(&gateways).await;
    }
}

#[tokio::test(start_paused = true)]
async fn registrations_that_somebody_altered_are_put_right() {
    let cluster = Cluster::new();
    cluster.name(3).await;
    let gateway = cluster.start("a");
    cluster.spread(&[(&gateway, 192)]).await;
    let id = ledger::ColdId::of_shard(7, 1, "cold.thermocline", 3181).unwrap().to_bookie_id();
    let key = metadata::layout::readonly_key(&id);
    cluster.store.delete_if(&key, metadata::Expect::Present).await.unwrap();
    cluster.spread(&[(&gateway, 191)]).await;
    let began = Instant::now();
    while cluster.addresses().await[&gateway.address] != 192 {
        assert!(began.elapsed() < COMPARE * 2);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
