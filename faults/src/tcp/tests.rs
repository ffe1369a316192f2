#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Answers each byte with itself, and counts what it was sent.
struct Echo {
    address: String,
    seen: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut all = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let counter = Arc::clone(&counter);
                all.spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        counter.fetch_add(read as u64, Ordering::SeqCst);
                        if stream.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen, _task: AbortOnDropHandle::new(task) }
    }
}

async fn world() -> (Echo, Proxy) {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.address.clone()).await.unwrap();
    (echo, proxy)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(bytes).await?;
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let all = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Whether nothing can be read for a while.
async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::time::timeout(Duration::from_millis(80), stream.read(&mut byte)).await.is_err()
}

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let (_echo, proxy) = world().await;
    let mut stream = connect(&proxy).await;
    let large = vec![7; 300_000];
    let (mut read, mut write) = stream.split();
    let mut answer = vec![0; large.len()];
    let (sent, got) = tokio::join!(write.write_all(&large), read.read_exact(&mut answer));
    sent.unwrap();
    got.unwrap();
    assert_eq!(answer, large);
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the end is passed on");
    drop(stream);
    until("closed", || proxy.traffic().open == 0).await;
    let traffic = proxy.traffic();
    assert_eq!((traffic.connections, traffic.broken), (1, 0));
    assert_eq!((traffic.bytes_up, traffic.bytes_down), (300_000, 300_000));
}

#[tokio::test]
async fn replies_are_swallowed_and_requests_are_not() {
    let (echo, proxy) = world().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"before").await.unwrap();
    proxy.set(Behaviour::swallow_replies());
    stream.write_all(b"applied").await.unwrap();
    until("the target saw it", || echo.seen.load(Ordering::SeqCst) == 13).await;
    until("its reply was taken", || proxy.traffic().bytes_swallowed == 7).await;
    assert!(is_silent(&mut stream).await);
    proxy.set(Behaviour::pass());
    assert_eq!(round_trip(&mut stream, b"after").await.unwrap(), b"after", "the lost reply does not come back");
}

#[tokio::test]
async fn connections_are_refused_and_reset() {
    let (_echo, proxy) = world().await;
    let mut open = connect(&proxy).await;
    round_trip(&mut open, b"x").await.unwrap();
    proxy.set(Behaviour::refuse());
    let mut refused = connect(&proxy).await;
    let error = round_trip(&mut refused, b"x").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    round_trip(&mut open, b"still").await.unwrap();
    proxy.reset_connections();
    let error = open.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    until("both are gone", || proxy.traffic().open == 0).await;
    assert_eq!(proxy.traffic().broken, 2);
    proxy.set(Behaviour::pass());
    let mut again = connect(&proxy).await;
    round_trip(&mut again, b"again").await.unwrap();
}

#[tokio::test]
async fn a_black_hole_says_nothing_and_lets_go() {
    let (echo, proxy) = world().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"1").await.unwrap();
    proxy.set(Behaviour::blackhole());
    stream.write_all(b"2").await.unwrap();
    let mut new = connect(&proxy).await;
    new.write_all(b"3").await.unwrap();
    assert!(is_silent(&mut stream).await && is_silent(&mut new).await);
    assert_eq!(echo.seen.load(Ordering::SeqCst), 1);
    proxy.set(Behaviour::pass());
    let mut byte = [0];
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"2");
    new.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"3");
}

#[tokio::test]
async fn a_cut_lets_exactly_so_much_through() {
    let (echo, proxy) = world().await;
    proxy.set(Behaviour::cut_requests_after(10));
    let mut stream = connect(&proxy).await;
    let _ = stream.write_all(&[1; 25]).await;
    until("cut", || proxy.traffic().broken == 1).await;
    assert_eq!(proxy.traffic().bytes_up, 10);
    assert!(echo.seen.load(Ordering::SeqCst) <= 10);
    proxy.set(Behaviour::cut_replies_after(10));
    let mut stream = connect(&proxy).await;
    stream.write_all(&[1; 25]).await.unwrap();
    until("cut", || proxy.traffic().broken == 2).await;
    assert_eq!(proxy.traffic().bytes_down, 10);
}

#[tokio::test]
async fn delays_and_bandwidth_take_their_time() {
    let (_echo, proxy) = world().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Behaviour::delay(Duration::from_millis(40)));
    let begun = tokio::time::Instant::now();
    round_trip(&mut stream, b"late").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(80), "{:?}", begun.elapsed());
    proxy.set(Behaviour::bandwidth(200_000));
    let begun = tokio::time::Instant::now();
    round_trip(&mut stream, &[1; 20_000]).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_absent_target_resets_and_another_can_be_named() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    let proxy = Proxy::start(address).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert!(round_trip(&mut stream, b"x").await.is_err());
    let echo = Echo::start().await;
    proxy.set_target(echo.address.clone());
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"x").await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_after_a_drop() {
    let (_echo, proxy) = world().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, b"x").await.unwrap();
    let address = proxy.address().to_owned();
    drop(proxy);
    assert!(matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    until("the port is closed", || std::net::TcpStream::connect(&address).is_err()).await;
}
