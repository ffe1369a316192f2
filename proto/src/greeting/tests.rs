use ledger::{EntryId, LedgerId, MasterKey};
use proptest::prelude::*;

use super::*;
use crate::bookkeeper::Response;
use crate::client::{self, AddFlags, Greeted, Operation};
use crate::{Incoming, ReadTarget};

const PLUGIN: &str = "some-plugin";

fn greeter(tls: TlsDemand, plugin: Option<&str>) -> Greeter {
    Greeter::new(Demands { tls, plugin: plugin.map(str::to_owned) })
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    out.split_off(4).freeze()
}

fn start_tls() -> Bytes {
    encoded(|out| client::encode_start_tls_v3(9, out))
}

fn auth_v3(plugin: &str) -> Bytes {
    encoded(|out| client::encode_auth_v3(5, plugin, Bytes::from_static(b"secret"), out))
}

fn auth_v2(plugin: &str) -> Bytes {
    let message =
        AuthMessage { auth_plugin_name: Some(plugin.to_owned()), payload: Some(Bytes::from_static(b"secret")) };
    v2::auth_frame(&message).slice(4..)
}

fn read_v2() -> Bytes {
    let (ledger, target) = (LedgerId::new(7).unwrap(), ReadTarget::Entry(EntryId::new(3).unwrap()));
    encoded(|out| client::encode_read_v2(ledger, target, None, false, out))
}

fn read_v3() -> Bytes {
    encoded(|out| client::encode_read_v3(11, LedgerId::new(7).unwrap(), ReadTarget::Last, None, false, out))
}

fn add_v2(payload_bytes: usize) -> Bytes {
    let mut body = vec![0; 32 + payload_bytes];
    body[..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3]);
    encoded(|out| client::encode_add_v2(&MasterKey::derive(b""), &body, AddFlags::default(), out))
}

fn batch_v2() -> Bytes {
    let read = client::BatchRead {
        ledger: LedgerId::new(7).unwrap(),
        start: EntryId::new(0).unwrap(),
        request: 1,
        count_max: None,
        bytes_max: 1000,
        fence: None,
        high_priority: false,
    };
    encoded(|out| client::encode_batch_read_v2(&read, out))
}

/// The whole answer to a version 3 request: transaction, operation, status, and whether it says more.
fn told(frame: &[u8]) -> (u64, i32, i32, bool) {
    let message = Response::decode(&frame[4..]).unwrap();
    assert_eq!(frame.len() - 4, usize::try_from(u32::from_be_bytes(*frame.first_chunk().unwrap())).unwrap());
    let header = message.header.unwrap();
    assert_eq!(header.version, Some(ProtocolVersion::VersionThree as i32));
    let bare = Response { header: Some(header), status: message.status, ..Response::default() };
    (header.txn_id.unwrap(), header.operation.unwrap(), message.status.unwrap(), message != bare)
}

fn refused(step: Step) -> Bytes {
    match step {
        Step::Refuse(frame) => frame,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn without_demands_every_frame_is_served() {
    for frame in [start_tls(), auth_v2("x"), auth_v3("x"), read_v2(), read_v3(), batch_v2(), Bytes::from_static(b"zzz")]
    {
        assert_eq!(greeter(TlsDemand::Off, None).step(&frame, true), Step::Serve);
    }
    assert!(greeter(TlsDemand::Off, None).is_done());
}

#[test]
fn start_tls_is_answered_in_clear_and_with_an_empty_message() {
    for (tls, plugin) in [(TlsDemand::Offered, None), (TlsDemand::Required, None), (TlsDemand::Required, Some(PLUGIN))]
    {
        let mut greeter = greeter(tls, plugin);
        let Step::StartTls(answer) = greeter.step(&start_tls(), true) else { panic!("TLS is not begun") };
        // Header {3, START_TLS, 9}, status EOK, startTLSResponse {}.
        assert_eq!(&answer[..], hex::decode("0000000d 0a06080310091809 1000 d20600".replace(' ', "")).unwrap());
        let payload = answer.slice(4..);
        assert_eq!(client::decode_greeting_v3(9, payload.clone()).unwrap(), Greeted::StartTls(Status::Ok));
        assert!(client::decode_greeting_v3(8, payload).is_err(), "of another request");
        greeter.secured();
        assert_eq!(greeter.is_done(), plugin.is_none());
        assert_eq!(greeter.is_locked(), plugin.is_some());
    }
}

#[test]
fn start_tls_is_refused_without_tls_and_a_second_time() {
    let bad = (9, OperationType::StartTls as i32, Status::BadRequest.v3(), false);
    let mut without = greeter(TlsDemand::Off, Some(PLUGIN));
    assert_eq!(told(&refused(without.step(&start_tls(), true))), bad);
    let mut twice = greeter(TlsDemand::Required, Some(PLUGIN));
    twice.secured();
    assert_eq!(told(&refused(twice.step(&start_tls(), true))), bad);
    let mut unlocked = greeter(TlsDemand::Offered, None);
    unlocked.secured();
    assert_eq!(unlocked.step(&start_tls(), true), Step::Serve, "the server refuses it");
}

#[test]
fn requests_of_strangers_are_refused_in_the_words_of_their_version() {
    for (tls, plugin) in
        [(TlsDemand::Required, None), (TlsDemand::Off, Some(PLUGIN)), (TlsDemand::Offered, Some(PLUGIN))]
    {
        let step = |payload: &Bytes, whole| greeter(tls, plugin).step(payload, whole);
        // Version 2 ADD and READ: the usual answer, with the ids as they were sent.
        let answer = "00000018 02020000 00000066 0000000000000007 0000000000000003".replace(' ', "");
        assert_eq!(&refused(step(&read_v2(), true))[..], hex::decode(&answer).unwrap());
        let answer = answer.replace("0202", "0201");
        assert_eq!(&refused(step(&add_v2(5), true))[..], hex::decode(&answer).unwrap());
        let long = add_v2(1 << 20).slice(..GREETING_HEAD_BYTES);
        assert_eq!(&refused(step(&long, false))[..], hex::decode(&answer).unwrap(), "long ones by their first bytes");
        // Other version 2: none.
        assert_eq!(step(&batch_v2(), true), Step::Close(CloseReason::Unauthenticated));
        // Version 3: the status alone.
        let expected = (11, OperationType::ReadEntry as i32, Status::Unauthorized.v3(), false);
        let frame = refused(step(&read_v3(), true));
        assert_eq!(told(&frame), expected);
        let read = client::decode_response_v3(frame.slice(4..)).unwrap();
        assert_eq!((read.operation, read.status), (Operation::Read, Status::Unauthorized));
        let mut long = read_v3().to_vec();
        long.resize(GREETING_HEAD_BYTES, 0);
        assert_eq!(told(&refused(step(&long.into(), false))), expected);
        for bad in
            [&b"z"[..], b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff", b"\x02\x01", &add_v2(5)[..39], &read_v2()[..19]]
        {
            assert!(matches!(step(&Bytes::copy_from_slice(bad), true), Step::Close(_)), "{bad:?}");
        }
    }
}

#[test]
fn what_a_caller_shows_goes_to_the_plug_in_and_is_answered_in_its_form() {
    for tls in [TlsDemand::Off, TlsDemand::Offered] {
        let Step::Authenticate { payload, reply } = greeter(tls, Some(PLUGIN)).step(&auth_v3(PLUGIN), true) else {
            panic!("not judged")
        };
        assert_eq!(&payload[..], b"secret");
        let accepted = reply.accepted();
        assert_eq!(told(&accepted), (5, OperationType::Auth as i32, 0, true));
        let greeted = client::decode_greeting_v3(5, accepted.slice(4..)).unwrap();
        assert_eq!(greeted, Greeted::Auth { status: Status::Ok, plugin: Some(PLUGIN.to_owned()) });
        let refused = reply.refused().unwrap();
        assert_eq!(told(&refused), (5, OperationType::Auth as i32, Status::Unauthorized.v3(), false));
        let greeted = client::decode_greeting_v3(5, refused.slice(4..)).unwrap();
        assert_eq!(greeted, Greeted::Auth { status: Status::Unauthorized, plugin: None });

        for version in [0_u8, 1, 2] {
            let mut frame = auth_v2(PLUGIN).to_vec();
            // Version 0 has the whole word for its operation.
            frame[..4].copy_from_slice(&v2::Header::word(version, v2::OP_AUTH, 0).to_be_bytes());
            let Step::Authenticate { payload, reply } = greeter(tls, Some(PLUGIN)).step(&frame, true) else {
                panic!("not judged")
            };
            assert_eq!(&payload[..], b"secret");
            assert_eq!(reply.refused(), None, "version 2 hangs up");
            let accepted = reply.accepted();
            assert_eq!(accepted[4..8], [2, 3, 0, 0], "version 2 whatever the request had");
            let message = AuthMessage::decode(&accepted[8..]).unwrap();
            assert_eq!(parts(message), Some((PLUGIN.to_owned(), Bytes::new())));
        }
    }
}

#[test]
fn another_plug_in_is_refused_and_may_be_followed_by_the_right_one() {
    let mut greeter = greeter(TlsDemand::Off, Some(PLUGIN));
    let unauthorized = (5, OperationType::Auth as i32, Status::Unauthorized.v3(), false);
    assert_eq!(told(&refused(greeter.step(&auth_v3("sasl"), true))), unauthorized);
    assert_eq!(told(&refused(greeter.step(&auth_v3(AUTH_DISABLED_PLUGIN), true))), unauthorized);
    assert!(matches!(greeter.step(&auth_v3(PLUGIN), true), Step::Authenticate { .. }));
    assert_eq!(greeter.step(&auth_v2("sasl"), true), Step::Close(CloseReason::Unauthenticated));
}

#[test]
fn a_secret_shown_in_clear_where_tls_is_required_is_not_looked_at() {
    let mut greeter = greeter(TlsDemand::Required, Some(PLUGIN));
    let unauthorized = (5, OperationType::Auth as i32, Status::Unauthorized.v3(), false);
    assert_eq!(told(&refused(greeter.step(&auth_v3(PLUGIN), true))), unauthorized);
    assert_eq!(greeter.clone().step(&auth_v2(PLUGIN), true), Step::Close(CloseReason::Unauthenticated));
    assert!(matches!(greeter.step(&start_tls(), true), Step::StartTls(_)));
    greeter.secured();
    assert!(matches!(greeter.clone().step(&auth_v3(PLUGIN), true), Step::Authenticate { .. }));
    assert!(matches!(greeter.step(&auth_v2(PLUGIN), true), Step::Authenticate { .. }), "version 2 under TLS");
}

#[test]
fn incomplete_authentications_are_refused() {
    let header = Request::decode(auth_v3(PLUGIN)).unwrap().header;
    let none = Request { header, ..Request::default() };
    let nameless = AuthMessage { auth_plugin_name: None, payload: Some(Bytes::new()) };
    let nameless = Request { auth_request: Some(nameless), ..none.clone() };
    for bad in [none, nameless] {
        let frame = refused(greeter(TlsDemand::Off, Some(PLUGIN)).step(&bad.encode_to_vec(), true));
        assert_eq!(told(&frame), (5, OperationType::Auth as i32, Status::BadRequest.v3(), false));
    }
    let mut greeter = greeter(TlsDemand::Off, Some(PLUGIN));
    assert_eq!(greeter.step(&[2, 3, 0, 0], true), Step::Close(CloseReason::Malformed));
    assert_eq!(greeter.step(&auth_v2(PLUGIN), false), Step::Close(CloseReason::Malformed), "too long to be one");
}

#[test]
fn start_tls_of_an_unknown_version_is_told_so() {
    let mut request = Request::decode(start_tls()).unwrap();
    request.header = request.header.map(|header| BkPacketHeader { version: Some(2), ..header });
    let step = greeter(TlsDemand::Required, None).step(&request.encode_to_vec(), true);
    assert_eq!(told(&refused(step)), (9, OperationType::StartTls as i32, Status::BadVersion.v3(), false));
}

#[test]
fn offered_tls_serves_everything_else_in_clear() {
    for frame in [auth_v2("x"), auth_v3("x"), read_v2(), read_v3(), batch_v2(), Bytes::from_static(b"zzz")] {
        assert_eq!(greeter(TlsDemand::Offered, None).step(&frame, true), Step::Serve);
        assert_eq!(greeter(TlsDemand::Offered, None).step(&frame, false), Step::Serve);
    }
}

#[test]
fn a_connection_that_spoke_version_2_stays_with_it_until_tls() {
    let mut greeter = greeter(TlsDemand::Required, None);
    refused(greeter.step(&read_v2(), true));
    assert!(matches!(greeter.step(&start_tls(), true), Step::Close(_)));
    greeter.secured();
    assert!(greeter.is_done());
}

proptest! {
    #[test]
    fn random_frames_never_panic_nor_open_a_locked_connection(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), any::<bool>()), 1..5),
        first in prop::sample::select(vec![0_u8, 1, 2, 0x0a]),
        required in any::<bool>(),
        secured in any::<bool>(),
    ) {
        let mut greeter = greeter(if required { TlsDemand::Required } else { TlsDemand::Offered }, Some(PLUGIN));
        if secured {
            greeter.secured();
        }
        for (mut frame, whole) in frames {
            if let Some(byte) = frame.first_mut() {
                *byte = first;
            }
            prop_assert_ne!(greeter.step(&frame, whole), Step::Serve);
        }
    }

    #[test]
    fn cut_or_changed_frames_never_open_a_locked_connection(
        which in 0_usize..7, cut in 0_usize..200, at in 0_usize..60, flip in any::<u8>(), whole in any::<bool>(),
    ) {
        let frames = [start_tls(), auth_v2("x"), auth_v3("x"), read_v2(), read_v3(), add_v2(5), batch_v2()];
        let mut frame = frames[which].to_vec();
        frame.truncate(cut.max(1));
        let at = at % frame.len();
        frame[at] ^= flip;
        prop_assert_ne!(greeter(TlsDemand::Required, Some(PLUGIN)).step(&frame, whole), Step::Serve);
        // What an unlocked connection is served, the server's own decoding takes without a panic.
        let incoming = crate::decode_request(&mut Protocol::default(), frame.into());
        prop_assert!(matches!(incoming, Incoming::Request(..) | Incoming::Reply(_) | Incoming::Close(_)));
    }
}
