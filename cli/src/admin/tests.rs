use std::time::Duration;

use common::budget::ByteBudget;
use common::shutdown::TaskTree;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    address: String,
    health: Health,
    role: TaskTree,
    tasks: TaskTree,
}

async fn start() -> Served {
    let (role, tasks) = (TaskTree::root("role"), TaskTree::root("admin"));
    let health = Health::starting("bookie", &role);
    let budget = ByteBudget::new("adds", 100);
    let admin = Admin::new(health.clone());
    let listener = bind("127.0.0.1:0").await.unwrap();
    let address = serve(listener, admin.clone(), &tasks);
    admin.metrics.add(metrics::budgets(&[budget]));
    Served { address, health, role, tasks }
}

impl Served {
    async fn get(&self, path: &str, headers: &str) -> String {
        let exchange = async {
            let mut stream = TcpStream::connect(&self.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time")
    }
}

#[tokio::test]
async fn readiness_follows_the_role() {
    let served = start().await;
    let answer = served.get("/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains(r#"{"role":"bookie","state":"starting","ok":false,"why":"the role is being started"#),
        "{answer}"
    );
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"), "a role that starts is healthy");

    served.health.ready();
    let answer = served.get("/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""state":"ready","ok":true"#), "{answer}");

    served.role.spawn_critical("journal", async { Err("disk gone") });
    served.role.failed().await;
    for path in ["/readyz", "/healthz"] {
        let answer = served.get(path, "").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("role/journal: disk gone"), "{answer}");
    }
    let metrics = served.get("/metrics", "").await;
    assert!(metrics.contains("thermocline_process_condition{condition=\"failed\"} 1.0"), "{metrics}");
}

#[tokio::test]
async fn scrapers_get_the_form_they_ask_for() {
    let served = start().await;
    let plain = served.get("/metrics", "").await;
    assert!(plain.contains("text/plain; version=0.0.4") && !plain.contains("# EOF"), "{plain}");
    assert!(plain.contains("\nthermocline_budget_max_bytes{budget=\"adds\"} 100.0\n"), "{plain}");
    assert!(plain.contains("\nthermocline_build_info{role=\"bookie\",version="), "{plain}");
    let open = served.get("/metrics", "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n").await;
    assert!(open.contains(OPEN_METRICS) && open.ends_with("# EOF\n"), "{open}");
}

#[tokio::test]
async fn another_path_is_told_which_there_are() {
    let served = start().await;
    let answer = served.get("/", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 404") && answer.contains("/metrics") && answer.contains("/readyz"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let served = start().await;
    let answer = served.get("/metrics", &format!("x: {}\r\n", "y".repeat(2 * HEAD_BYTES_MAX))).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn silent_peers_hold_their_places_for_a_short_time_only() {
    let served = start().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(TcpStream::connect(&served.address).await.unwrap());
    }
    // All places are taken; this one is answered once the silent ones are cut off.
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn it_stops_when_asked_even_with_a_silent_peer() {
    let served = start().await;
    let mut silent = TcpStream::connect(&served.address).await.unwrap();
    served.tasks.stop(PATIENCE).await.unwrap();
    let mut left = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut left)).await.expect("the connection is closed");
    assert!(TcpStream::connect(&served.address).await.is_err());
}

#[test]
fn the_address_follows_the_front_unless_it_is_given() {
    let cases = [
        ("", "127.0.0.1:9600", Some("127.0.0.1:10600")),
        ("", "0.0.0.0:9700", Some("127.0.0.1:10700")),
        ("", "[::1]:0", Some("127.0.0.1:0")),
        ("", "127.0.0.1:65535", Some("127.0.0.1:0")),
        ("off", "127.0.0.1:9600", None),
        ("0.0.0.0:1234", "127.0.0.1:9600", Some("0.0.0.0:1234")),
    ];
    for (admin, front, expected) in cases {
        assert_eq!(address(admin, front).as_deref(), expected, "{admin} {front}");
    }
}
