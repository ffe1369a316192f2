//! What operators see: metrics that move by what was done, health that says why, and documents that name what there is.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use cli::Settings;
use cli::standalone::Node;
use config::ByteSize;
use proto::v1::Tier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Calls, DEADLINE, settings};

const COPIES: u64 = 3;

fn with_admin(dir: &Path) -> Settings {
    Settings { admin: "127.0.0.1:0".to_owned(), ..settings(dir) }
}

/// Status line and body of one request.
async fn get(address: &str, path: &str) -> (String, String) {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = tokio::time::timeout(DEADLINE, exchange).await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// The samples of one scrape, by name and labels as they stand in the text.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    async fn of(address: &str) -> Self {
        let (status, body) = get(address, "/metrics").await;
        assert!(status.contains("200"), "{status}");
        let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Self(samples.collect())
    }

    fn one(&self, sample: &str) -> u64 {
        *self.0.get(sample).unwrap_or_else(|| panic!("no {sample}")) as u64
    }

    /// The sum over all bookies.
    fn all_bookies(&self, metric: &str, labels: &str) -> u64 {
        let found: Vec<f64> =
            (1..=COPIES).map(|number| self.0[&format!("{metric}{{bookie=\"bookie-{number}\"{labels}}}")]).collect();
        found.iter().sum::<f64>() as u64
    }
}

/// Scrapes until the last answers of a quorum that was not waited for are counted too.
async fn scrape_until(address: &str, reached: impl Fn(&Scrape) -> bool) -> Scrape {
    let wait = async {
        loop {
            let scrape = Scrape::of(address).await;
            if reached(&scrape) {
                return scrape;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the metrics reach it in time")
}

async fn write(node: &Node, entries: u64, bytes: usize) -> u64 {
    let writer = node.create_ledger().await.unwrap();
    let mut promises = Vec::new();
    for _ in 0..entries {
        promises.push(writer.append(Bytes::from(vec![7; bytes])).await.unwrap());
    }
    for promise in promises {
        promise.await.unwrap();
    }
    writer.close().await.unwrap();
    writer.id().get()
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_move_by_what_was_done() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let node = Node::start(with_admin(dir.path())).await.unwrap();
    let admin = node.admin_address().unwrap().to_owned();
    let before = Scrape::of(&admin).await;
    assert_eq!(before.all_bookies("thermocline_bookie_adds_total", ""), 0);
    assert_eq!(before.one("thermocline_process_condition{condition=\"ready\"}"), 1);

    let (entries, bytes) = (500, 100);
    let ledger = write(&node, entries, bytes).await;
    let adds = entries * COPIES;
    let scrape = scrape_until(&admin, |scrape| scrape.all_bookies("thermocline_bookie_adds_total", "") == adds).await;
    // Header and CRC-32C digest of each entry.
    assert_eq!(scrape.all_bookies("thermocline_bookie_add_bytes_total", ""), adds * (32 + 4 + bytes as u64));
    assert_eq!(scrape.all_bookies("thermocline_bookie_add_seconds_count", ""), adds);
    assert_eq!(scrape.all_bookies("thermocline_bookie_stored_entries", ""), adds);
    assert_eq!(scrape.all_bookies("thermocline_bookie_adds_refused_total", ",reason=\"io\""), 0);
    assert_eq!(scrape.one("thermocline_client_appends_total"), entries);
    assert_eq!(scrape.one("thermocline_client_append_bytes_total"), entries * bytes as u64);
    let groups = scrape.all_bookies("thermocline_bookie_journal_sync_seconds_count", "");
    assert!(groups >= COPIES && groups <= adds + COPIES, "{groups}");
    // One key record a bookie beside the entries.
    assert_eq!(scrape.all_bookies("thermocline_bookie_journal_group_records_sum", ""), adds + COPIES);
    assert!(scrape.one("thermocline_metadata_operations_total{operation=\"commit\",outcome=\"done\"}") >= 2);

    let mut calls = Calls::connect(&node.endpoint()).await;
    let result = calls.offload(ledger, true).await.unwrap();
    let scrape = Scrape::of(&admin).await;
    assert_eq!(scrape.one("thermocline_offloader_jobs_total{outcome=\"settled-and-released\"}"), 1);
    assert_eq!(scrape.one("thermocline_offloader_read_entries_total"), entries);
    assert_eq!(scrape.one("thermocline_offloader_settled_payload_bytes_total"), entries * bytes as u64);
    let object_bytes = result.cold.unwrap().object_bytes;
    assert_eq!(scrape.one("thermocline_offloader_settled_object_bytes_total"), object_bytes);
    assert_eq!(scrape.one("thermocline_offloader_step_seconds_count{step=\"commit\"}"), 1);
    assert_eq!(scrape.one("thermocline_cold_written_bytes_total"), object_bytes);
    assert_eq!(scrape.one("thermocline_client_read_entries_total"), entries);
    // The release is proved by reading the first and the last entry through each of three cold ids.
    let reads = "thermocline_gateway_bookkeeper_requests_total{operation=\"read\",outcome=\"done\"}";
    assert_eq!(scrape.one(reads), 6);
    assert_eq!(scrape.one("thermocline_gateway_owned_shards"), 64);
    scrape_until(&admin, |scrape| scrape.one("thermocline_gateway_cold_ids_registered_total") == 192).await;
    assert_eq!(scrape.one("thermocline_gateway_foreign_shard_requests_total"), 0);

    let read = calls.read(ledger, 0, None, Tier::Unspecified).await.unwrap();
    assert_eq!(read.len() as u64, entries);
    let scrape =
        scrape_until(&admin, |scrape| scrape.one("thermocline_gateway_open_streams{kind=\"read\"}") == 0).await;
    assert_eq!(scrape.one("thermocline_gateway_served_entries_total{tier=\"cold\"}"), entries);
    assert_eq!(scrape.one("thermocline_gateway_served_bytes_total{tier=\"cold\"}"), entries * bytes as u64);
    assert_eq!(scrape.one("thermocline_gateway_served_entries_total{tier=\"hot\"}"), 0);
    assert_eq!(scrape.one("thermocline_gateway_reads_total{outcome=\"done\"}"), 1);
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_ready_until_it_stops() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let node = Node::start(with_admin(dir.path())).await.unwrap();
    let admin = node.admin_address().unwrap().to_owned();
    let (status, body) = get(&admin, "/readyz").await;
    assert!(status.contains("200"), "{status}");
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((answer["role"].as_str(), answer["state"].as_str()), (Some("standalone"), Some("ready")), "{body}");
    assert!(get(&admin, "/healthz").await.0.contains("200"));
    let health = node.admin().health.clone();
    node.stop().await.unwrap();
    assert_eq!(health.condition().name(), "stopping");
    assert!(TcpStream::connect(&admin).await.is_err(), "nothing listens after the stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bookie_without_space_after_a_restart_says_so() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let node = Node::start(with_admin(dir.path())).await.unwrap();
    let ledger = write(&node, 200, 1_000).await;
    node.stop().await.unwrap();

    // Less than what is stored by now.
    let mut settings = with_admin(dir.path());
    settings.bookie.disk_bytes_max = settings.bookie.segment_bytes;
    let limit = settings.bookie.disk_bytes_max.bytes();
    let node = Node::start(settings.clone()).await.unwrap();
    let admin = node.admin_address().unwrap().to_owned();
    let (status, body) = get(&admin, "/readyz").await;
    assert!(status.contains("200"), "what is stored is served: {status}");
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["state"], "read-only", "{body}");
    let why = answer["why"].as_str().unwrap();
    assert!(why.contains("bookie-1 takes no entries") && why.contains("disk_bytes_max"), "{why}");
    let scrape = Scrape::of(&admin).await;
    assert_eq!(scrape.all_bookies("thermocline_bookie_state", ",state=\"read-only\""), COPIES);
    assert_eq!(scrape.all_bookies("thermocline_bookie_state", ",state=\"writable\""), 0);
    assert_eq!(scrape.all_bookies("thermocline_bookie_allocated_max_bytes", ""), limit * COPIES);
    let used = scrape.one("thermocline_bookie_allocated_bytes{bookie=\"bookie-1\"}");
    assert!(used > 0 && why.contains(&format!("segments occupy {used} bytes")), "{used}: {why}");
    assert_eq!(scrape.one("thermocline_process_condition{condition=\"read-only\"}"), 1);
    let mut calls = Calls::connect(&node.endpoint()).await;
    let read = calls.read(ledger, 0, None, Tier::Unspecified).await.unwrap();
    assert_eq!(read.len(), 200);
    node.stop().await.unwrap();

    settings.bookie.disk_bytes_max = ByteSize::gib(1);
    let node = Node::start(settings).await.unwrap();
    let (_, body) = get(node.admin_address().unwrap(), "/readyz").await;
    assert!(body.contains("\"ready\""), "{body}");
    node.stop().await.unwrap();
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The lines that docs/metrics.md must have, one a metric, under the heading of its crate.
fn documented(shown: &[common::metrics::Shown]) -> Vec<String> {
    let line = |metric: &common::metrics::Shown| {
        let labels = if metric.labels.is_empty() { "-".to_owned() } else { metric.labels.join(", ") };
        format!("| `{}` | {} | {labels} | {} |", metric.name, metric.kind, metric.help)
    };
    shown.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documents_name_the_metrics_there_are() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let node = Node::start(with_admin(dir.path())).await.unwrap();
    let shown = node.admin().metrics.shown();
    let scrape = Scrape::of(node.admin_address().unwrap()).await;
    node.stop().await.unwrap();

    let lines = documented(&shown);
    let path = repository().join("docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `thermocline_")).collect();
    let missing: Vec<&String> = lines.iter().filter(|line| !found.contains(&line.as_str())).collect();
    let extra: Vec<&&str> = found.iter().filter(|line| !lines.iter().any(|known| known == **line)).collect();
    let list = |lines: Vec<String>| lines.join("\n");
    assert!(
        missing.is_empty() && extra.is_empty(),
        "docs/metrics.md differs from the code.\nAdd:\n{}\nRemove:\n{}",
        list(missing.into_iter().cloned().collect()),
        list(extra.into_iter().map(|line| (*line).to_owned()).collect())
    );
    let mut sorted = found.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), found.len(), "a metric stands in docs/metrics.md twice");

    // Histograms are scraped under three names more.
    let mut names: Vec<String> = shown.iter().map(|metric| metric.name.clone()).collect();
    for metric in shown.iter().filter(|metric| metric.kind == "histogram") {
        names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name)));
    }
    for file in ["docs/operations/alerts.yaml", "docs/operations/prometheus.yaml"] {
        let text = std::fs::read_to_string(repository().join(file)).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("thermocline_")) {
            assert!(names.iter().any(|name| name == word), "{file} names {word}, which is no metric");
        }
        for (metric, label, value) in selectors(&text) {
            let wanted = format!("{label}=\"{value}\"");
            let exists = scrape.0.keys().any(|sample| {
                let rest = sample.strip_prefix(&metric).filter(|rest| rest.starts_with('{'));
                rest.is_some_and(|labels| labels.contains(&wanted))
            });
            assert!(exists, "{file}: {metric} has no {wanted}");
        }
    }
}

/// Metric, label and value of every selector of one label in a text; the values of a regular expression one by one.
fn selectors(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (place, _) in text.match_indices("thermocline_") {
        let end = text[place..].find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let Some(end) = end.map(|end| place + end) else { continue };
        let Some((inside, _)) = text[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')) else { continue };
        let (label, values) = inside.split_once('=').unwrap();
        let values = values.trim_matches(['~', '"']);
        let one = |value: &str| (text[place..end].to_owned(), label.to_owned(), value.to_owned());
        found.extend(values.split('|').map(one));
    }
    found
}
