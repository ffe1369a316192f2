//! Client and server ends together.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use common::net::{BoxStream, Listener as _};
use proto::{FrameDecoder, Incoming, Protocol, decode_request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::{ADDRESS, Authority, Raw, TOKEN, World};
use crate::metrics::Ended;
use crate::{ConnectConfig, ConnectMetrics, Guard, GuardTls, Introduced};

async fn connect(world: &World, config: &ConnectConfig) -> io::Result<BoxStream> {
    let connector = Introduced::over(Arc::new(world.network.clone()), config, &world.clock, &ConnectMetrics::default())
        .await
        .unwrap();
    connector.connect(ADDRESS).await
}

async fn refused(world: &World, config: &ConnectConfig) -> String {
    match connect(world, config).await {
        Ok(_) => panic!("let in"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with(&format!("connect to {ADDRESS}: ")) && !text.contains(TOKEN), "{text}");
            text
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_introduced_connection_is_served() {
    let world = World::new();
    for (tls, tokens) in [(GuardTls::Required, true), (GuardTls::Offered, true), (GuardTls::Required, false)] {
        let mut served = world.serve(&world.guard(tls, tokens)).await;
        let config = world.connect(true, tokens.then_some(TOKEN));
        let mut raw = Raw::new(connect(&world, &config).await.unwrap());
        raw.is_served(&vec![7; 300_000]).await;
        let peer = served.peer().await;
        assert_eq!(peer.ends_with("(token of writer-1)"), tokens, "{peer}");
        served.counted(Ended::Secured, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_does_not_keep_from_a_server_that_asks_nobody_for_one() {
    let world = World::new();
    let guard = Guard::open(&world.guard(GuardTls::Required, false), &world.clock).await.unwrap().unwrap();
    let mut listener = guard.listen(Box::new(world.network.listen(ADDRESS)), &world.tasks);
    // What bookies answer without a plug-in, Java's and ours.
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut decoder, mut input) = (FrameDecoder::new(1000), BytesMut::new());
        let payload = loop {
            stream.read_buf(&mut input).await.unwrap();
            if let Some(payload) = decoder.decode(&mut input).unwrap() {
                break payload;
            }
        };
        let Incoming::Reply(answer) = decode_request(&mut Protocol::default(), payload) else { panic!("no answer") };
        stream.write_all(&answer).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let config = world.connect(true, Some(TOKEN));
    let (client, server) = tokio::join!(connect(&world, &config), server);
    assert!(client.is_ok());
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn clients_show_certificates_where_they_must() {
    let world = World::new();
    let clients = Authority::new("clients");
    let mut guard = world.guard(GuardTls::Required, false);
    guard.client_ca = world.file("clients.pem", &clients.pem());
    let mut served = world.serve(&guard).await;
    let mut config = world.connect(true, None);
    (config.certificate, config.key) = world.issued(&clients, "client", &["writer-1"]);
    let mut raw = Raw::new(connect(&world, &config).await.unwrap());
    raw.is_served(b"hello").await;
    let peer = served.peer().await;
    assert!(peer.contains(" (certificate ") && peer.len() > 30, "{peer}");

    // With TLS 1.3 a client learns at its first read that its certificate is not taken.
    let mut stranger = config.clone();
    (stranger.certificate, stranger.key) = world.issued(&Authority::new("clients"), "stranger", &["writer-1"]);
    for config in [world.connect(true, None), stranger] {
        let mut stream = connect(&world, &config).await.unwrap();
        let _ = stream.write_all(b"hello").await;
        let error = stream.read_u8().await.unwrap_err();
        assert!(error.to_string().contains("alert"), "{error}");
    }
    assert!(served.nobody_came_in());
    served.counted(Ended::Handshake, 2).await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_not_who_they_should_be_are_not_spoken_to() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Required, true)).await;
    let good = world.connect(true, Some(TOKEN));
    let other = ConnectConfig { ca: world.file("other.pem", &Authority::new("authority").pem()), ..good.clone() };
    let told = refused(&world, &other).await;
    assert!(told.contains("TLS was not set up: invalid peer certificate"), "{told}");

    let connector = Introduced::over(Arc::new(world.network.clone()), &good, &world.clock, &ConnectMetrics::default())
        .await
        .unwrap();
    let guard = Guard::open(&world.guard(GuardTls::Required, true), &world.clock).await.unwrap().unwrap();
    let _other_host = guard.listen(Box::new(world.network.listen("other.test:3181")), &world.tasks);
    let told = connector.connect("other.test:3181").await.err().unwrap().to_string();
    assert!(told.contains("not valid for name"), "{told}");

    world.hand.advance(Duration::from_secs(3 * 366 * 86_400));
    let told = refused(&world, &good).await;
    assert!(told.contains("expired"), "{told}");
    assert!(served.nobody_came_in());
    served.counted(Ended::Handshake, 2).await;
}

#[tokio::test(start_paused = true)]
async fn certificates_may_be_for_addresses() {
    let world = World::new();
    let mut guard = world.guard(GuardTls::Required, false);
    (guard.certificate, guard.key) = world.issued(&world.authority, "address", &["10.0.0.7", "::1"]);
    let guard = Guard::open(&guard, &world.clock).await.unwrap().unwrap();
    let connector = Introduced::over(
        Arc::new(world.network.clone()),
        &world.connect(true, None),
        &world.clock,
        &ConnectMetrics::default(),
    )
    .await
    .unwrap();
    for (address, is_named) in [("10.0.0.7:3181", true), ("[::1]:3181", true), ("10.0.0.8:3181", false)] {
        let mut listener = guard.listen(Box::new(world.network.listen(address)), &world.tasks);
        let connected = connector.connect(address).await;
        assert_eq!(connected.is_ok(), is_named, "{address}");
        if is_named {
            assert!(listener.accept().await.is_ok());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_the_server_is_told() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Required, true)).await;
    let told = refused(&world, &world.connect(true, Some("a token of somebody else"))).await;
    assert!(told.contains("does not accept the token"), "{told}");
    served.counted(Ended::Token, 1).await;
    // Without a token the connection is there, and its requests are refused.
    let stream = connect(&world, &world.connect(true, None)).await.unwrap();
    assert!(served.nobody_came_in());
    drop(stream);

    let guard = world.guard(GuardTls::Off, true);
    let mut served = world.serve(&guard).await;
    let told = refused(&world, &world.connect(true, Some(TOKEN))).await;
    assert!(told.contains("no TLS") && told.contains("BadRequest"), "{told}");
    assert!(served.nobody_came_in());
}

#[tokio::test(start_paused = true)]
async fn a_token_goes_in_clear_within_this_machine_only() {
    let world = World::new();
    let config = world.connect(false, Some(TOKEN));
    let mut served = world.serve(&world.guard(GuardTls::Off, true)).await;
    let told = refused(&world, &config).await;
    assert!(told.contains("in clear") && told.contains("connect.tls"), "{told}");
    assert_eq!(served.guard.counts().count(Ended::Left), 0, "nothing was even connected");
    let guard = Guard::open(&world.guard(GuardTls::Off, true), &world.clock).await.unwrap().unwrap();
    let mut listener = guard.listen(Box::new(world.network.listen("127.0.0.1:3181")), &world.tasks);
    let connector =
        Introduced::over(Arc::new(world.network.clone()), &config, &world.clock, &ConnectMetrics::default())
            .await
            .unwrap();
    let (connected, accepted) = tokio::join!(connector.connect("127.0.0.1:3181"), listener.accept());
    assert!(connected.is_ok() && accepted.unwrap().1.ends_with("(token of writer-1)"));
    assert!(served.nobody_came_in());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let world = World::new();
    let mut silent = world.network.listen(ADDRESS);
    let config = world.connect(true, None);
    let (told, accepted) = tokio::join!(refused(&world, &config), async {
        let accepted = silent.accept().await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        accepted
    });
    assert!(told.contains("no answer"), "{told}");
    drop(accepted);
}
