//! The offload of one ledger, with each of its requests failing once in each way: those to the object store through a proxy that knows
//! them, those to metadata by a store that lies about what happened. Whatever fails, the ledger is settled with one object that is
//! whole, and nothing was replaced or deleted on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use ::faults::http::{Fault, Operation, Proxy, Rule};
use ::faults::s3::{Options, Server};
use futures::StreamExt as _;
use metadata::FaultKind;
use tokio::time::Instant;

use crate::offload_world::{World, open, store_options};

const PART_BYTES: u64 = 64 << 10;
/// Worlds at a time: most of their time is waits of clients before they repeat a request.
const WORLDS: usize = 8;

struct Lane {
    server: Server,
    proxy: Proxy,
    world: World,
    direct: cold::ColdStore,
}

async fn lane(request_retries: usize) -> Lane {
    let server = Server::start(Options { part_bytes_min: 1, ..Options::default() }).await.unwrap();
    let proxy = Proxy::start(server.endpoint()).await.unwrap();
    let url = format!("s3://{}/cold", server.bucket());
    let key = (server.access_key(), server.secret_key());
    let cold = open(&url, store_options(&proxy.endpoint(), key, PART_BYTES, request_retries));
    let direct = open(&url, store_options(server.endpoint(), key, PART_BYTES, 0));
    let world = World::new(&cold, 60, 4_000).await;
    Lane { server, proxy, world, direct }
}

impl Lane {
    /// Offloads, and proves that nothing is in the store that nobody answers for. Returns how many orders it took.
    async fn prove(self, what: &str) -> usize {
        let outcome = self.world.offload(what, &self.direct).await;
        assert!(self.proxy.done().iter().all(|done| *done == 1), "{what}: the request did not come");
        let named = format!("cold/{}", outcome.key);
        let condemned: Vec<String> = outcome.condemned.iter().map(|key| format!("cold/{key}")).collect();
        let objects = self.server.objects();
        assert!(objects.iter().any(|(key, _)| *key == named), "{what}: the named object is not there: {objects:?}");
        for (key, _) in &objects {
            assert!(*key == named || condemned.contains(key), "{what}: nobody answers for {key}");
        }
        for upload in self.server.unfinished() {
            let key = &upload.key;
            assert!(*key == named || condemned.contains(key), "{what}: nobody answers for an upload of {key}");
        }
        let history = self.server.history();
        assert_eq!((history.replaced, history.deleted), (0, 0), "{what}");
        self.world.stop().await;
        outcome.tries
    }
}

/// The ways a request of this operation can fail.
fn ways(operation: Operation) -> Vec<(&'static str, Fault)> {
    let status = |status, code: &str| Fault::Status(status, code.to_owned());
    let after = |status, code: &str| Fault::StatusAfter(status, code.to_owned());
    let mut ways = vec![
        ("500 before", status(500, "InternalError")),
        ("503 before", Fault::slow_down()),
        ("500 after", after(500, "InternalError")),
        ("reset before", Fault::Reset),
        ("reply dropped", Fault::DropReply),
        ("delayed", Fault::Delay(Duration::from_millis(30))),
        ("slow", Fault::Bandwidth(2_000_000)),
    ];
    if matches!(operation, Operation::Put | Operation::UploadPart | Operation::CompleteMultipart) {
        ways.push(("request cut", Fault::CutRequest(20)));
    }
    if matches!(operation, Operation::Get | Operation::CreateMultipart | Operation::CompleteMultipart) {
        ways.push(("reply cut", Fault::CutReply(20)));
    }
    if matches!(operation, Operation::Put | Operation::CompleteMultipart) {
        ways.push(("409 before", Fault::conflict()));
        ways.push(("409 after", after(409, "ConditionalRequestConflict")));
    }
    if operation == Operation::CompleteMultipart {
        ways.push(("200 with error", Fault::error_in_ok()));
        ways.push(("200 with error, done", Fault::ErrorInOk { code: "InternalError".to_owned(), applied: true }));
    }
    ways
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_an_offload_fails_once_in_each_way() {
    let begun = Instant::now();
    let clean = lane(0).await;
    let tries = clean.world.offload("without a fault", &clean.direct).await.tries;
    let requests: Vec<Operation> = clean.proxy.log().iter().map(|record| record.request.operation).collect();
    assert_eq!(tries, 1);
    let parts = requests.iter().filter(|operation| **operation == Operation::UploadPart).count();
    assert!(parts >= 3, "an upload of several parts: {requests:?}");
    assert!(requests.contains(&Operation::CompleteMultipart) && requests.contains(&Operation::Get), "{requests:?}");
    clean.world.stop().await;

    // With a client that never repeats a request, and with one that does as in production.
    let cases: Vec<(usize, usize, Operation, &str, Fault)> = [0, 2]
        .into_iter()
        .flat_map(|retries| requests.iter().enumerate().map(move |(place, operation)| (retries, place, *operation)))
        .flat_map(|(retries, place, operation)| {
            // What is only late looks the same to a client that would repeat.
            let failing = move |fault: &Fault| retries == 0 || !matches!(fault, Fault::Delay(_) | Fault::Bandwidth(_));
            let ways = ways(operation).into_iter().filter(move |(_, fault)| failing(fault));
            ways.map(move |(name, fault)| (retries, place, operation, name, fault))
        })
        .collect();
    let count = cases.len();
    let runs = cases.into_iter().map(|(retries, place, operation, name, fault)| async move {
        let what = format!("request {} ({operation}) {name}, client repeats {retries} times", place + 1);
        let lane = lane(retries).await;
        lane.proxy.add(Rule::any().nth(place as u64 + 1).fault(fault));
        (name, lane.prove(&what).await)
    });
    let outcomes: Vec<(&str, usize)> = futures::stream::iter(runs).buffer_unordered(WORLDS).collect().await;
    let by_way = by_way(outcomes);
    tell(
        &format!(
            "{} requests to the object store ({parts} parts), with and without the client's repeats: {count} runs in {:.1} s",
            requests.len(),
            begun.elapsed().as_secs_f64()
        ),
        &by_way,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_metadata_request_of_an_offload_fails_once_in_each_way() {
    let begun = Instant::now();
    let clean = lane(0).await;
    clean.world.metadata.arm(None);
    let tries = clean.world.offload_only("without a fault").await;
    let (commits, reads) = clean.world.metadata.counts();
    assert!(tries == 1 && commits >= 3 && reads >= 3, "{tries} {commits} {reads}");
    clean.world.stop().await;

    let of_commits = [
        ("not done, told so", FaultKind::FailBefore),
        ("done, told unknown", FaultKind::AppliedUnknown),
        ("not done, told unknown", FaultKind::NotAppliedUnknown),
        ("done late", FaultKind::Delay(Duration::from_millis(20))),
    ];
    let commit_cases = (1..=commits).flat_map(|n| of_commits.map(|(name, kind)| (n, "commit", name, kind)));
    let read_cases = (1..=reads).map(|n| (n, "read", "failed read", FaultKind::FailRead));
    let cases: Vec<_> = commit_cases.chain(read_cases).collect();
    let count = cases.len();
    let runs = cases.into_iter().map(|(n, call, name, kind)| async move {
        let what = format!("{call} {n} {name}");
        let lane = lane(0).await;
        lane.world.metadata.arm(Some((n, kind)));
        let tries = lane.world.offload_only(&what).await;
        assert!(lane.world.metadata.is_spent(), "{what}: the request did not come");
        lane.prove(&what).await;
        (name, tries)
    });
    let outcomes: Vec<(&str, usize)> = futures::stream::iter(runs).buffer_unordered(WORLDS).collect().await;
    let by_way = by_way(outcomes);
    let seconds = begun.elapsed().as_secs_f64();
    tell(&format!("{commits} commits and {reads} reads of metadata: {count} runs in {seconds:.1} s"), &by_way);
}

/// Runs of each way, and how many of them took more than one order.
fn by_way(outcomes: Vec<(&'static str, usize)>) -> BTreeMap<&'static str, (usize, usize)> {
    let mut by_way: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (name, tries) in outcomes {
        let sum = by_way.entry(name).or_default();
        sum.0 += 1;
        sum.1 += usize::from(tries > 1);
    }
    by_way
}

fn tell(what: &str, by_way: &BTreeMap<&'static str, (usize, usize)>) {
    println!("offload under faults: {what}; each ended settled with one whole object");
    for (name, (runs, again)) in by_way {
        println!("  {name}: {runs} runs, {again} of them settled by a later order");
    }
}
