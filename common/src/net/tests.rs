use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Sends a word each way over a new connection.
async fn greet(connector: &dyn Connector, listener: &mut dyn Listener) {
    let address = listener.address();
    let (near, far) = tokio::join!(connector.connect(&address), listener.accept());
    let (mut near, (mut far, peer)) = (near.unwrap(), far.unwrap());
    assert!(!peer.is_empty());
    exchange(&mut near, &mut far).await;
    exchange(&mut far, &mut near).await;
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0, "the end is seen");
}

async fn exchange(from: &mut BoxStream, to: &mut BoxStream) {
    from.write_all(b"hello").await.unwrap();
    from.flush().await.unwrap();
    let mut word = [0; 5];
    to.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"hello");
}

#[tokio::test]
async fn tcp_carries_both_ways() {
    let mut listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(!listener.address().ends_with(":0"));
    greet(&TcpConnector, &mut listener).await;
}

#[tokio::test]
async fn memory_carries_both_ways() {
    let network = MemoryNetwork::new();
    let mut listener = network.listen("b1:3181");
    greet(&network, &mut listener).await;
}

#[tokio::test]
async fn a_busy_port_is_a_sentence() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = first.address();
    let error = TcpListener::bind(&address).await.unwrap_err();
    let expected =
        format!("listen on {address}: address already in use; stop the other process or choose another port");
    assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::AddrInUse, expected));
}

#[tokio::test]
async fn a_bad_address_is_a_sentence() {
    let error = TcpListener::bind("no-port").await.unwrap_err().to_string();
    assert!(error.starts_with("listen on no-port: ") && error.contains("write host:port"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_a_sentence() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.address();
    drop(listener);
    for connector in [&TcpConnector as &dyn Connector, &MemoryNetwork::new()] {
        let Err(error) = connector.connect(&address).await else { panic!("connected") };
        assert_eq!(error.to_string(), format!("connect to {address}: connection refused"));
    }
}

#[tokio::test]
async fn a_cut_breaks_both_sides_and_refuses_until_healed() {
    let network = MemoryNetwork::new();
    let mut listener = network.listen("b1:3181");
    let mut near = network.connect("b1:3181").await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let waits = tokio::spawn(async move { far.read(&mut [0; 8]).await });
    tokio::task::yield_now().await;
    network.cut("b1:3181");
    assert_eq!(waits.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(near.write(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!(network.connect("b1:3181").await.is_err());
    network.heal("b1:3181");
    assert!(near.write(b"x").await.is_err(), "a broken connection stays broken");
    greet(&network, &mut listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_frozen_link_is_silent_until_healed() {
    let network = MemoryNetwork::new();
    let mut listener = network.listen("b1:3181");
    let mut near = network.connect("b1:3181").await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    near.write_all(b"hello").await.unwrap();
    network.freeze("b1:3181");
    let mut word = [0; 5];
    assert!(tokio::time::timeout(Duration::from_secs(1), far.read_exact(&mut word)).await.is_err());
    let Err(error) = network.connect("b1:3181").await else { panic!("connected") };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let waits = tokio::spawn(async move {
        far.read_exact(&mut word).await.unwrap();
        word
    });
    tokio::task::yield_now().await;
    network.heal("b1:3181");
    assert_eq!(&waits.await.unwrap(), b"hello");
}

#[tokio::test]
async fn a_dropped_listener_refuses_and_a_new_one_takes_over() {
    let network = MemoryNetwork::new();
    drop(network.listen("b1:3181"));
    assert!(network.connect("b1:3181").await.is_err());
    let mut old = network.listen("b1:3181");
    let mut new = network.listen("b1:3181");
    assert!(old.accept().await.is_err());
    drop(old);
    greet(&network, &mut new).await;
}
