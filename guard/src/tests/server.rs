//! The server's phase, for each row of the protocol and for peers that mean no good.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Listener, Offer};
use ledger_free::{add_v2, batch_v2, read_v2, read_v3};
use proptest::prelude::*;
use proto::client::{
    Greeted, decode_greeting_v3, decode_response_v2, decode_response_v3, encode_auth_v3, encode_start_tls_v3,
};
use proto::{Status, TlsDemand};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::support::{ADDRESS, HOST, Raw, TOKEN, World};
use crate::files::{Content, Named};
use crate::greet::{GREETING_DEADLINE, Material, greet};
use crate::listener::GREETINGS_MAX;
use crate::metrics::{Ended, Metrics};
use crate::tokens::Tokens;
use crate::{ConnectConfig, Guard, GuardTls, TOKEN_PLUGIN, tls};

/// Frames of requests, written by hand: the guard knows no ledgers.
mod ledger_free {
    /// READ of entry 3 of ledger 7, version 2.
    pub(super) fn read_v2() -> Vec<u8> {
        [&[0, 0, 0, 20, 2, 2, 0, 0][..], &7_u64.to_be_bytes(), &3_u64.to_be_bytes()].concat()
    }

    /// ADD of entry 3 of ledger 7, version 2, with a body of this size.
    pub(super) fn add_v2(body_bytes: usize) -> Vec<u8> {
        let length = u32::try_from(24 + body_bytes).unwrap();
        let mut frame = [&length.to_be_bytes()[..], &[2, 1, 0, 0], &[9; 20]].concat();
        let mut body = [&7_u64.to_be_bytes()[..], &3_u64.to_be_bytes()].concat();
        body.resize(body_bytes, 5);
        frame.extend_from_slice(&body);
        frame
    }

    /// BATCH_READ, version 2.
    pub(super) fn batch_v2() -> Vec<u8> {
        [&[0, 0, 0, 40, 2, 7, 0, 0][..], &[0; 36]].concat()
    }

    /// READ of entry 3 of ledger 7, version 3, transaction 11.
    pub(super) fn read_v3() -> Vec<u8> {
        let header = [0x0a, 6, 8, 3, 0x10, 1, 0x18, 11];
        let read = [0xa2, 6, 4, 8, 7, 0x10, 3];
        [&[0, 0, 0, 15][..], &header, &read].concat()
    }
}

fn start_tls() -> Bytes {
    let mut out = BytesMut::new();
    encode_start_tls_v3(1, &mut out);
    out.freeze()
}

fn auth(plugin: &str, token: &str) -> Bytes {
    let mut out = BytesMut::new();
    encode_auth_v3(2, plugin, Bytes::copy_from_slice(token.as_bytes()), &mut out);
    out.freeze()
}

/// The same in version 2: the message alone behind the header word.
fn auth_v2(plugin: &str, token: &str) -> Vec<u8> {
    let mut message = vec![0x0a, u8::try_from(plugin.len()).unwrap()];
    message.extend_from_slice(plugin.as_bytes());
    message.extend_from_slice(&[0x12, u8::try_from(token.len()).unwrap()]);
    message.extend_from_slice(token.as_bytes());
    let length = u32::try_from(message.len() + 4).unwrap();
    [&length.to_be_bytes()[..], &[2, 3, 0, 0], &message].concat()
}

async fn greeted(raw: &mut Raw, txn: u64) -> Greeted {
    decode_greeting_v3(txn, raw.frame().await.unwrap().slice(4..)).unwrap()
}

fn accepted() -> Greeted {
    Greeted::Auth { status: Status::Ok, plugin: Some(TOKEN_PLUGIN.to_owned()) }
}

fn unauthorized() -> Greeted {
    Greeted::Auth { status: Status::Unauthorized, plugin: None }
}

/// Puts TLS on a connection whose START_TLS was answered.
async fn secure(world: &World, raw: Raw) -> Raw {
    let ca = Content { named: Named::new("ca", "ca".as_ref()), bytes: world.authority.pem().into_bytes() };
    let config = tls::client(&ca, None, &world.clock).unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    Raw::new(Box::new(TlsConnector::from(Arc::new(config)).connect(name, raw.stream).await.unwrap()))
}

#[tokio::test(start_paused = true)]
async fn strangers_are_refused_in_the_words_of_their_version_and_may_still_say_who_they_are() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Off, true)).await;
    let mut raw = world.raw().await;
    raw.send(&read_v3()).await;
    let answer = decode_response_v3(raw.frame().await.unwrap().slice(4..)).unwrap();
    assert_eq!((answer.txn, answer.status, answer.ledger), (11, Status::Unauthorized, -1));
    raw.send(&start_tls()).await;
    assert_eq!(greeted(&mut raw, 1).await, Greeted::StartTls(Status::BadRequest), "there is no TLS");
    raw.send(&auth("sasl", TOKEN)).await;
    assert_eq!(greeted(&mut raw, 2).await, unauthorized(), "another plug-in, and the connection stays");
    for request in [read_v2(), add_v2(40)] {
        raw.send(&request).await;
        let answer = decode_response_v2(raw.frame().await.unwrap().slice(4..)).unwrap();
        assert_eq!((answer.status, answer.ledger, answer.entry), (Status::Unauthorized, 7, 3));
    }
    assert!(served.nobody_came_in());
    // What comes right behind the authentication is for the server.
    raw.send(&[&auth_v2(TOKEN_PLUGIN, TOKEN)[..], b"first"].concat()).await;
    assert_eq!(raw.frame().await.unwrap(), auth_v2(TOKEN_PLUGIN, ""));
    raw.gets(b"first").await;
    raw.is_served(b"second").await;
    let peer = served.peer().await;
    assert!(peer.starts_with("memory:") && peer.ends_with(" (token of writer-1)"), "{peer}");
    served.counted(Ended::Clear, 1).await;
}

#[tokio::test(start_paused = true)]
async fn other_requests_of_strangers_in_version_2_close_the_connection() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Off, true)).await;
    for request in
        [batch_v2(), auth_v2("sasl", TOKEN), vec![0, 0, 0, 4, 2, 3, 0, 0], vec![0, 0, 0, 1, b'z'], vec![0; 4]]
    {
        let mut raw = world.raw().await;
        raw.send(&request).await;
        raw.is_closed().await;
    }
    assert!(served.nobody_came_in());
    served.counted(Ended::Broke, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_of_nobody_ends_the_connection() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Off, true)).await;
    for token in ["", "a token of nobody here", &"x".repeat(5000)] {
        let mut raw = world.raw().await;
        raw.send(&auth(TOKEN_PLUGIN, token)).await;
        assert_eq!(greeted(&mut raw, 2).await, unauthorized());
        raw.is_closed().await;
    }
    let mut raw = world.raw().await;
    raw.send(&auth_v2(TOKEN_PLUGIN, "a token of nobody here")).await;
    raw.is_closed().await;
    assert!(served.nobody_came_in());
    served.counted(Ended::Token, 4).await;
}

#[tokio::test(start_paused = true)]
async fn start_tls_is_answered_in_clear_with_nothing_behind_it_and_then_everything_is_under_tls() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Required, true)).await;
    let mut raw = world.raw().await;
    raw.send(&read_v3()).await;
    let answer = decode_response_v3(raw.frame().await.unwrap().slice(4..)).unwrap();
    assert_eq!(answer.status, Status::Unauthorized, "nothing in clear");
    raw.send(&auth(TOKEN_PLUGIN, TOKEN)).await;
    assert_eq!(greeted(&mut raw, 2).await, unauthorized(), "a token in clear is not looked at");
    raw.send(&start_tls()).await;
    assert_eq!(greeted(&mut raw, 1).await, Greeted::StartTls(Status::Ok));
    let mut raw = secure(&world, raw).await;
    raw.send(&start_tls()).await;
    assert_eq!(greeted(&mut raw, 1).await, Greeted::StartTls(Status::BadRequest), "a second time");
    raw.send(&read_v3()).await;
    assert_eq!(decode_response_v3(raw.frame().await.unwrap().slice(4..)).unwrap().status, Status::Unauthorized);
    raw.send(&auth(TOKEN_PLUGIN, TOKEN)).await;
    assert_eq!(greeted(&mut raw, 2).await, accepted());
    raw.is_served(&read_v2()).await;
    assert!(served.peer().await.ends_with("(token of writer-1)"));
    served.counted(Ended::Secured, 1).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_in_clear_behind_start_tls_end_the_connection() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Offered, false)).await;
    for injected in [&read_v2()[..], b"x", &start_tls()] {
        let mut raw = world.raw().await;
        raw.send(&[&start_tls()[..], injected].concat()).await;
        raw.is_closed().await;
    }
    served.counted(Ended::Broke, 3).await;
    // Those that come after the answer are no handshake.
    let mut raw = world.raw().await;
    raw.send(&start_tls()).await;
    assert_eq!(greeted(&mut raw, 1).await, Greeted::StartTls(Status::Ok));
    raw.send(&read_v2()).await;
    let mut alert = Vec::new();
    raw.stream.read_to_end(&mut alert).await.unwrap();
    assert!(alert.len() < 10, "{alert:?}");
    served.counted(Ended::Handshake, 1).await;
    assert!(served.nobody_came_in());
}

#[tokio::test(start_paused = true)]
async fn offered_tls_leaves_clear_connections_as_they_are() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Offered, false)).await;
    for request in
        [read_v2(), read_v3(), auth("x", "y").to_vec(), add_v2(100_000), vec![0, 0, 0, 3, 9, 9, 9], vec![0xff; 8]]
    {
        let mut raw = world.raw().await;
        raw.is_served(&request).await;
        // Too late: that is for the server, which has no TLS to give.
        raw.is_served(&start_tls()).await;
        served.peer().await;
    }
    // A frame that is long is not waited for, and one that comes in pieces is put together again.
    let mut raw = world.raw().await;
    let long = add_v2(1_000_000);
    raw.is_served(&long[..200]).await;
    let mut raw = world.raw().await;
    for byte in read_v2() {
        raw.send(&[byte]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    raw.gets(&read_v2()).await;
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_is_not_waited_for_longer_than_the_deadline() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Required, true)).await;
    for begun in [&b""[..], &start_tls()[..7], &auth(TOKEN_PLUGIN, TOKEN)[..30], &[0, 0, 1]] {
        let mut raw = world.raw().await;
        let began = tokio::time::Instant::now();
        raw.send(begun).await;
        raw.is_closed().await;
        assert_eq!(began.elapsed().as_secs(), GREETING_DEADLINE.as_secs());
    }
    // A byte a second is no progress either.
    let mut raw = world.raw().await;
    let began = tokio::time::Instant::now();
    for byte in auth(TOKEN_PLUGIN, TOKEN) {
        if raw.stream.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(began.elapsed() <= GREETING_DEADLINE + Duration::from_secs(1), "{:?}", began.elapsed());
    // Nor is a handshake that stops.
    let mut raw = world.raw().await;
    raw.send(&start_tls()).await;
    assert_eq!(greeted(&mut raw, 1).await, Greeted::StartTls(Status::Ok));
    raw.is_closed().await;
    served.counted(Ended::Late, 6).await;
    assert!(served.nobody_came_in());
}

#[tokio::test(start_paused = true)]
async fn a_connection_opened_before_it_is_needed_is_served_where_everybody_is() {
    let world = World::new();
    let served = world.serve(&world.guard(GuardTls::Offered, false)).await;
    let mut raw = world.raw().await;
    let mut begun = world.raw().await;
    begun.send(&read_v2()[..3]).await;
    tokio::time::sleep(GREETING_DEADLINE * 3).await;
    raw.is_served(&read_v2()).await;
    begun.is_closed().await;
    served.counted(Ended::Late, 1).await;
}

#[tokio::test(start_paused = true)]
async fn long_requests_of_strangers_are_refused_by_their_first_bytes_and_thrown_away() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Off, true)).await;
    let mut raw = world.raw().await;
    for _ in 0..3 {
        raw.send(&add_v2(4_000_000)).await;
        let answer = decode_response_v2(raw.frame().await.unwrap().slice(4..)).unwrap();
        assert_eq!((answer.status, answer.ledger, answer.entry), (Status::Unauthorized, 7, 3));
    }
    raw.send(&auth_v2(TOKEN_PLUGIN, TOKEN)).await;
    assert!(raw.frame().await.is_some());
    served.peer().await;
    for length in [0x7fff_ffff_u32, 0x8000_0000, 0xffff_ffff] {
        let mut raw = world.raw().await;
        raw.send(&length.to_be_bytes()).await;
        raw.is_closed().await;
    }
    // An authentication that long is none.
    let mut raw = world.raw().await;
    let mut frame = auth_v2(TOKEN_PLUGIN, TOKEN);
    frame[..4].copy_from_slice(&1_000_000_u32.to_be_bytes());
    frame.resize(1_000_004, 0);
    raw.send(&frame[..70_000]).await;
    raw.is_closed().await;
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_too_often_is_hung_up_on() {
    let world = World::new();
    let mut served = world.serve(&world.guard(GuardTls::Required, false)).await;
    let mut raw = world.raw().await;
    let mut answers = 0;
    raw.send(&read_v3().repeat(100)).await;
    while raw.frame().await.is_some() {
        answers += 1;
    }
    assert_eq!(answers, 64);
    assert!(served.nobody_came_in());
}

#[tokio::test(start_paused = true)]
async fn a_registration_says_what_is_offered_and_asked() {
    let world = World::new();
    for (tls, tokens, offer) in [
        (GuardTls::Off, true, Offer { tls: false, auth: Some(TOKEN_PLUGIN.to_owned()) }),
        (GuardTls::Offered, false, Offer { tls: true, auth: None }),
        (GuardTls::Required, true, Offer { tls: true, auth: Some(TOKEN_PLUGIN.to_owned()) }),
    ] {
        let guard = Guard::open(&world.guard(tls, tokens), &world.clock).await.unwrap().unwrap();
        let listener = guard.listen(Box::new(world.network.listen(ADDRESS)), &world.tasks);
        assert_eq!(listener.offer(), offer);
    }
    assert!(Guard::open(&world.guard(GuardTls::Off, false), &world.clock).await.unwrap().is_none());
    assert!(ConnectConfig::default().is_plain());
}

#[tokio::test(start_paused = true)]
async fn greetings_end_with_the_role_and_with_the_listener() {
    let world = World::new();
    let guard = Guard::open(&world.guard(GuardTls::Off, true), &world.clock).await.unwrap().unwrap();
    let listener = guard.listen(Box::new(world.network.listen(ADDRESS)), &world.tasks);
    let mut waiting = world.raw().await;
    drop(listener);
    waiting.is_closed().await;
    let mut listener = guard.listen(Box::new(world.network.listen(ADDRESS)), &world.tasks);
    let mut waiting = world.raw().await;
    world.tasks.stop(Duration::from_secs(1)).await.unwrap();
    waiting.is_closed().await;
    assert!(listener.accept().await.is_err());
}

/// Feeds a greeting with bytes and the end of the connection; whether it let them in.
fn let_in(demands: &proto::Demands, material: &Material, bytes: &[u8]) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        greet(Box::new(far), demands, material, &Metrics::default()).await.is_ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn random_bytes_neither_panic_nor_come_in(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        framed in any::<bool>(),
        first in prop::sample::select(vec![0_u8, 1, 2, 0x0a]),
        required in any::<bool>(),
        truth in 0_usize..4,
        at in any::<usize>(),
        flip in 1_u8..,
    ) {
        let world = World::new();
        let bytes = match truth {
            // Something true with one byte changed.
            0 => { let mut frame = auth(TOKEN_PLUGIN, TOKEN).to_vec(); let at = at % frame.len(); frame[at] ^= flip; frame }
            1 => { let mut frame = start_tls().to_vec(); let at = at % frame.len(); frame[at] ^= flip; [frame, bytes].concat() }
            _ if framed => {
                let length = u32::try_from(bytes.len() + 1).unwrap();
                [&length.to_be_bytes()[..], &[first], &bytes].concat()
            }
            _ => bytes,
        };
        let tls = if required { TlsDemand::Required } else { TlsDemand::Off };
        let server = required.then(|| {
            let (certificate, key) = world.authority.issue(&[HOST]);
            let content = |what, text: String| Content { named: Named::new(what, what.as_ref()), bytes: text.into_bytes() };
            Arc::new(tls::server(&content("certificate", certificate), &content("key", key), None, &world.clock).unwrap())
        });
        let tokens = Content { named: Named::new("tokens", "tokens".as_ref()), bytes: super::support::line("a", TOKEN).into_bytes() };
        let material = Material { tls: server, tokens: Some(Tokens::parse(&tokens).unwrap()), validity: None };
        let demands = proto::Demands { tls, plugin: Some(TOKEN_PLUGIN.to_owned()) };
        let came_in = let_in(&demands, &material, &bytes);
        // A changed transaction number is still the token's holder; everything else is nobody.
        prop_assert!(!came_in || (truth == 0 && !required && auth(TOKEN_PLUGIN, TOKEN).ends_with(&bytes[20..])));
    }
}

/// All connections are of one host.
struct OneHost(common::net::MemoryListener, usize);

#[async_trait::async_trait]
impl Listener for OneHost {
    async fn accept(&mut self) -> std::io::Result<(BoxStream, String)> {
        let (stream, _) = self.0.accept().await?;
        self.1 += 1;
        // The last one is of another.
        let host = if self.1 <= GREETINGS_MAX / 2 + 1 { 1 } else { 2 };
        Ok((stream, format!("10.0.0.{host}:{}", self.1)))
    }

    fn address(&self) -> String {
        self.0.address()
    }
}

#[tokio::test(start_paused = true)]
async fn one_host_that_says_nothing_leaves_places_to_others() {
    let world = World::new();
    let guard = Guard::open(&world.guard(GuardTls::Off, true), &world.clock).await.unwrap().unwrap();
    let mut listener = guard.listen(Box::new(OneHost(world.network.listen(ADDRESS), 0)), &world.tasks);
    let mut silent = Vec::new();
    // As many as it likes while half of the places are free, and none beyond.
    for _ in 0..GREETINGS_MAX / 2 {
        silent.push(world.raw().await);
    }
    world.raw().await.is_closed().await;
    assert_eq!(guard.counts().count(Ended::Crowd), 1);
    let mut other = world.raw().await;
    let mut frame = BytesMut::new();
    encode_auth_v3(1, TOKEN_PLUGIN, Bytes::from_static(TOKEN.as_bytes()), &mut frame);
    other.send(&frame).await;
    let (_stream, peer) = listener.accept().await.unwrap();
    assert!(peer.starts_with("10.0.0.2:"), "{peer}");
}
