use bytes::{Bytes, BytesMut};
use ledger::{DigestType, Digester, EntryHeader, EntryId, LedgerId, MasterKey, Password};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::bookkeeper as wire;
use crate::client::{self, AddFlags, BatchRead, Operation, PayloadV3};
use crate::{Availability, AvailabilityWriter, FRAME_BYTES_MAX_DEFAULT, FrameDecoder, PollTarget, ReadTarget};

const MK: &str = "850bf1071c5e3d8c24235676f8816ae0cbe2f14f";
const BODY: &str = "00000000000000010000000000000000ffffffffffffffff0000000000000005e3a5f74d68656c6c6f";

fn unhex(text: &str) -> Bytes {
    let text: String = text.replace("MK", MK).replace("BODY", BODY).split_whitespace().collect();
    hex::decode(text).unwrap().into()
}

fn ledger(id: u64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn entry(id: u64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn key() -> MasterKey {
    MasterKey::derive(b"")
}

fn body() -> Bytes {
    let header = EntryHeader { ledger: ledger(1), entry: entry(0), last_confirmed: None, length: 5 };
    let sealed = Digester::new(DigestType::Crc32c, &Password::empty()).seal(&header, b"hello");
    assert_eq!(sealed, unhex(BODY));
    sealed
}

/// Cuts one whole frame and returns its payload.
fn payload(frame: &[u8]) -> Bytes {
    let mut buf = BytesMut::from(frame);
    let payload = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT).decode(&mut buf).unwrap().unwrap();
    assert!(buf.is_empty(), "one frame");
    payload
}

fn decode(frame: &[u8]) -> Incoming {
    decode_request(&mut Protocol::default(), payload(frame))
}

fn request(frame: &[u8]) -> (ReplyTo, Request) {
    match decode(frame) {
        Incoming::Request(to, request) => (to, request),
        other => panic!("expected a request, got {other:?}"),
    }
}

fn reply(incoming: Incoming) -> Bytes {
    match incoming {
        Incoming::Reply(frame) => frame,
        other => panic!("expected a reply, got {other:?}"),
    }
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    out.freeze()
}

fn add(recovery: bool, high_priority: bool, deferred_sync: bool) -> Request {
    Request::Add {
        ledger: ledger(1),
        entry: entry(0),
        master_key: key(),
        body: body(),
        recovery,
        high_priority,
        deferred_sync,
    }
}

fn read(ledger: LedgerId, target: ReadTarget, fence: bool, high_priority: bool) -> Request {
    Request::Read { ledger, target, fence, master_key: fence.then(key), high_priority }
}

/// The frames of section 10 of the compatibility specification.
mod vectors {
    use super::*;

    #[test]
    fn v2_add() {
        let frame = unhex(
            "00000041 02010000 MK 0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005 e3a5f74d 68656c6c6f",
        );
        assert_eq!(encoded(|out| client::encode_add_v2(&key(), &body(), AddFlags::default(), out)), frame);
        let (to, got) = request(&frame);
        assert_eq!(got, add(false, false, false));
        assert_eq!(to.to_frame(&Reply::Added), unhex("00000018 02010000 00000000 0000000000000001 0000000000000000"));
    }

    #[test]
    fn v2_reads() {
        let cases = [
            ("00000014 02020000 0000000000000001 0000000000000000", ReadTarget::Entry(entry(0)), false, false),
            ("00000028 02020001 0000000000000001 ffffffffffffffff MK", ReadTarget::Last, true, false),
            ("00000028 02020005 0000000000000001 0000000000000007 MK", ReadTarget::Entry(entry(7)), true, true),
        ];
        for (hex, target, fence, high_priority) in cases {
            let frame = unhex(hex);
            let ours = encoded(|out| {
                client::encode_read_v2(ledger(1), target, fence.then(key).as_ref(), high_priority, out);
            });
            assert_eq!(ours, frame);
            assert_eq!(request(&frame).1, read(ledger(1), target, fence, high_priority));
        }
    }

    #[test]
    fn v2_read_responses() {
        let (to, _) = request(&unhex("00000014 02020000 0000000000000001 0000000000000000"));
        let frame = to.to_frame(&Reply::Read { body: body(), max_lac: Some(entry(3)) });
        assert_eq!(frame, unhex("00000041 02020000 00000000 0000000000000001 0000000000000000 BODY"));
        let (to, _) = request(&unhex("00000014 02020000 0000000000000001 0000000000000009"));
        let frame = to.to_frame(&Reply::Failed(Status::NoEntry));
        assert_eq!(frame, unhex("00000018 02020000 00000002 0000000000000001 0000000000000009"));
    }

    #[test]
    fn v2_batch_read() {
        let frame =
            unhex("00000028 02070000 0000000000000001 0000000000000000 000000000000004d 0000000a 0000000000500000");
        let read = BatchRead {
            ledger: ledger(1),
            start: entry(0),
            request: 77,
            count_max: Some(10),
            bytes_max: 5 << 20,
            fence: None,
            high_priority: false,
        };
        assert_eq!(encoded(|out| client::encode_batch_read_v2(&read, out)), frame);
        let (to, got) = request(&frame);
        let expected = Request::BatchRead {
            ledger: ledger(1),
            start: entry(0),
            count_max: Some(10),
            bytes_max: 5 << 20,
            fence: false,
            master_key: None,
            high_priority: false,
        };
        assert_eq!(got, expected);
        let two = Reply::Batch { entries: vec![Bytes::from_static(b"one"), Bytes::new()] };
        let head = "02070000 00000000 0000000000000001 0000000000000000 000000000000004d";
        assert_eq!(to.to_frame(&two), unhex(&format!("0000002b {head} 00000003 6f6e65 00000000")));
        let head = "02070000 00000002 0000000000000001 0000000000000000 000000000000004d";
        assert_eq!(to.to_frame(&Reply::Failed(Status::NoEntry)), unhex(&format!("00000020 {head}")));
    }

    #[test]
    fn v2_auth_is_answered_with_the_disabled_plugin() {
        let frame = unhex("0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200");
        assert_eq!(reply(decode(&frame)), frame);
    }

    #[test]
    fn v3_add() {
        let frame = unhex("00000050 0a06080310021801 aa0645 0801 1000 1a14 MK 2229 BODY");
        let ours = encoded(|out| {
            client::encode_add_v3(1, ledger(1), entry(0), &key(), &body(), AddFlags::default(), false, out);
        });
        assert_eq!(ours, frame);
        let (to, got) = request(&frame);
        assert_eq!(got, add(false, false, false));
        assert_eq!(to.to_frame(&Reply::Added), unhex("00000013 0a06080310021801 1000 aa0606 080010011800"));
    }

    #[test]
    fn v3_fencing_read_of_the_last_entry() {
        let frame = unhex("00000031 0a06080310011802 a20626 0801 10ffffffffffffffffff01 1a14 MK a00601");
        let ours = encoded(|out| {
            client::encode_read_v3(2, ledger(1), ReadTarget::Last, Some(&key()), false, out);
        });
        assert_eq!(ours, frame);
        assert_eq!(request(&frame).1, read(ledger(1), ReadTarget::Last, true, false));
    }
}

mod version_2 {
    use super::*;

    #[test]
    fn version_0_has_no_flags_and_answers_in_kind() {
        let (to, got) = request(&unhex("00000014 00000002 0000000000000001 0000000000000000"));
        assert_eq!(got, read(ledger(1), ReadTarget::Entry(entry(0)), false, false));
        let frame = to.to_frame(&Reply::Failed(Status::NoLedger));
        assert_eq!(frame, unhex("00000018 00000002 00000001 0000000000000001 0000000000000000"));
        let with_flag = unhex("00000028 00020001 0000000000000001 0000000000000000 MK");
        assert_eq!(decode(&with_flag), Incoming::Close(CloseReason::UnsupportedOperation(0x0002_0001)));
    }

    #[test]
    fn fencing_needs_room_for_the_key() {
        let frame = reply(decode(&unhex("00000014 01020001 0000000000000001 ffffffffffffffff")));
        assert_eq!(frame, unhex("00000018 01020000 00000066 0000000000000001 ffffffffffffffff"));
        let short = unhex("00000014 02020001 0000000000000001 ffffffffffffffff");
        assert_eq!(decode(&short), Incoming::Close(CloseReason::Truncated));
    }

    #[test]
    fn unknown_version_is_told_so_once_the_connection_is_binary() {
        let mut protocol = Protocol::V2;
        for (request, answer) in [
            (
                "00000014 03020000 0000000000000001 0000000000000009",
                "00000018 03020000 00000067 0000000000000001 0000000000000009",
            ),
            ("00000041 0a010000 MK BODY", "00000018 0a010000 00000067 0000000000000001 0000000000000000"),
        ] {
            assert_eq!(reply(decode_request(&mut protocol, payload(&unhex(request)))), unhex(answer));
        }
        let first = unhex("00000014 03020000 0000000000000001 0000000000000009");
        assert_eq!(decode(&first), Incoming::Close(CloseReason::UnknownProtocol(3)));
    }

    #[test]
    fn negative_ids_are_bad_requests_with_the_ids_echoed() {
        for (request, answer) in [
            (
                "00000014 02020000 ffffffffffffffff 0000000000000000",
                "02020000 00000064 ffffffffffffffff 0000000000000000",
            ),
            (
                "00000014 02020000 0000000000000001 fffffffffffffffe",
                "02020000 00000064 0000000000000001 fffffffffffffffe",
            ),
            (
                "00000038 02010000 MK 0000000000000001 ffffffffffffffff ffffffffffffffff 0000000000000000",
                "02010000 00000064 0000000000000001 ffffffffffffffff",
            ),
            (
                "00000028 02010000 MK 0000000000000001 0000000000000001",
                "02010000 00000064 0000000000000001 0000000000000001",
            ),
        ] {
            assert_eq!(reply(decode(&unhex(request))), unhex(&format!("00000018 {answer}")), "{request}");
        }
    }

    #[test]
    fn other_operations_close() {
        for opcode in [0u8, 4, 5, 6, 8, 255] {
            let frame = unhex(&format!("00000014 02{opcode:02x}0000 0000000000000001 0000000000000000"));
            assert_eq!(decode(&frame), Incoming::Close(CloseReason::UnsupportedOperation(u32::from(opcode))));
        }
    }

    #[test]
    fn batch_reads_that_are_refused() {
        let tail = "000000000000004d 00000000 ffffffffffffffff";
        let cases = [
            ("0000003c 02070001 ffffffffffffffff 0000000000000000", "MK", "00000064 ffffffffffffffff 0000000000000000"),
            ("00000028 02070000 0000000000000001 ffffffffffffffff", "", "00000064 0000000000000001 ffffffffffffffff"),
            ("00000028 01070001 0000000000000001 0000000000000000", "", "00000066 0000000000000001 0000000000000000"),
        ];
        for (start, key, answer) in cases {
            let version = &start[9..11];
            let expected = unhex(&format!("00000020 {version}070000 {answer} 000000000000004d"));
            assert_eq!(reply(decode(&unhex(&format!("{start} {tail} {key}")))), expected, "{start}");
        }
        let short = unhex(&format!("00000028 02070001 0000000000000001 0000000000000000 {tail}"));
        assert_eq!(decode(&short), Incoming::Close(CloseReason::Truncated), "no key");
        let short = unhex("0000001c 02070000 0000000000000001 0000000000000000 000000000000004d");
        assert_eq!(decode(&short), Incoming::Close(CloseReason::Truncated));
    }

    #[test]
    fn counts_and_sizes_below_zero_are_no_limit_and_one_entry() {
        for (count, bytes, count_max, bytes_max) in [
            ("00000000", "0000000000000000", None, 0),
            ("ffffffff", "ffffffffffffffff", None, 0),
            ("7fffffff", "7fffffffffffffff", Some(i32::MAX as u32), i64::MAX as u64),
        ] {
            let frame = format!("00000028 02070004 0000000000000001 0000000000000000 000000000000004d {count} {bytes}");
            let Request::BatchRead { count_max: count, bytes_max: bytes, high_priority, .. } =
                request(&unhex(&frame)).1
            else {
                panic!("expected a batch read");
            };
            assert_eq!((count, bytes, high_priority), (count_max, bytes_max, true));
        }
    }

    #[test]
    fn status_107_is_never_sent() {
        let (to, _) = request(&unhex("00000014 02020000 0000000000000001 0000000000000000"));
        let frame = to.to_frame(&Reply::Failed(Status::UnknownLedgerState));
        assert_eq!(client::decode_response_v2(payload(&frame)).unwrap().status, Status::Io);
    }
}

mod version_3 {
    use super::*;

    fn frame(message: &wire::Request) -> Bytes {
        encoded(|out| crate::v3::encode_response(message, out))
    }

    fn message(operation: i32) -> wire::Request {
        wire::Request { header: Some(header(operation)), ..wire::Request::default() }
    }

    fn header(operation: i32) -> wire::BkPacketHeader {
        wire::BkPacketHeader { version: Some(3), operation: Some(operation), txn_id: Some(9), priority: None }
    }

    fn read_message(read: wire::ReadRequest) -> wire::Request {
        wire::Request { read_request: Some(read), ..message(1) }
    }

    fn response(incoming: Incoming) -> wire::Response {
        wire::Response::decode(payload(&reply(incoming))).unwrap()
    }

    /// The status of each sub-message of an answer.
    fn inner(answer: &wire::Response) -> Vec<Option<i32>> {
        let list = answer.get_list_of_entries_of_ledger_response.as_ref();
        let found = [
            answer.read_response.as_ref().map(|read| read.status),
            answer.add_response.as_ref().map(|add| add.status),
            answer.read_lac_response.as_ref().map(|read| read.status),
            answer.write_lac_response.as_ref().map(|write| write.status),
            answer.force_ledger_response.as_ref().map(|force| force.status),
            answer.get_bookie_info_response.as_ref().map(|info| info.status),
            list.map(|list| list.status),
        ];
        found.into_iter().flatten().collect()
    }

    fn check_refused(message: &wire::Request, expected: Status) {
        let answer = response(decode(&frame(message)));
        let operation = message.header.unwrap().operation;
        let header = wire::BkPacketHeader { operation, ..header(0) };
        assert_eq!(answer.header, Some(header));
        assert_eq!(answer.status, Some(expected.v3()));
        assert_eq!(inner(&answer), [Some(expected.v3())], "exactly one sub-message, with the same status");
    }

    #[test]
    fn reads_that_are_refused() {
        let plain = wire::ReadRequest { ledger_id: Some(1), entry_id: Some(2), ..wire::ReadRequest::default() };
        let check = |read: wire::ReadRequest, expected| check_refused(&read_message(read), expected);
        check(wire::ReadRequest { ledger_id: Some(-1), ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { ledger_id: None, ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { entry_id: Some(-2), ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { entry_id: None, ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { flag: Some(1), ..plain.clone() }, Status::Unauthorized);
        let short_key = Some(Bytes::from_static(b"short"));
        check(wire::ReadRequest { flag: Some(1), master_key: short_key, ..plain.clone() }, Status::Unauthorized);
        check(wire::ReadRequest { previous_lac: Some(-2), ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { flag: Some(2), previous_lac: Some(4), ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { flag: Some(2), entry_id: Some(-1), ..plain.clone() }, Status::BadRequest);
        check(wire::ReadRequest { flag: Some(77), ..plain.clone() }, Status::BadRequest);
        check_refused(&message(1), Status::BadRequest);
        let mut old = read_message(plain);
        old.header.as_mut().unwrap().version = Some(2);
        check_refused(&old, Status::BadVersion);
    }

    #[test]
    fn refusals_echo_the_ids() {
        let read = wire::ReadRequest { ledger_id: Some(-5), entry_id: Some(-7), ..wire::ReadRequest::default() };
        let answer = response(decode(&frame(&read_message(read)))).read_response.unwrap();
        assert_eq!((answer.ledger_id, answer.entry_id), (Some(-5), Some(-7)));
    }

    #[test]
    fn headers_that_cannot_be_answered_close() {
        let whole = header(1);
        for header in [
            wire::BkPacketHeader { version: None, ..whole },
            wire::BkPacketHeader { operation: None, ..whole },
            wire::BkPacketHeader { txn_id: None, ..whole },
        ] {
            let message = wire::Request { header: Some(header), ..wire::Request::default() };
            assert_eq!(decode(&frame(&message)), Incoming::Close(CloseReason::Malformed), "{header:?}");
        }
    }

    #[test]
    fn what_lacks_its_message_or_a_field_is_refused() {
        for operation in [1, 2, 6, 7, 8, 10, 11] {
            check_refused(&message(operation), Status::BadRequest);
        }
        for ledger_id in [None, Some(-3)] {
            let read = Some(wire::ReadLacRequest { ledger_id });
            check_refused(&wire::Request { read_lac_request: read, ..message(7) }, Status::BadRequest);
            let force = Some(wire::ForceLedgerRequest { ledger_id });
            check_refused(&wire::Request { force_ledger_request: force, ..message(10) }, Status::BadRequest);
            let list = Some(wire::GetListOfEntriesOfLedgerRequest { ledger_id });
            let message = wire::Request { get_list_of_entries_of_ledger_request: list, ..message(11) };
            check_refused(&message, Status::BadRequest);
        }
    }

    #[test]
    fn explicit_last_confirmed_that_are_refused() {
        let body = [&1_i64.to_be_bytes()[..], &7_i64.to_be_bytes(), &[1, 2, 3, 4]].concat();
        let plain = wire::WriteLacRequest {
            ledger_id: Some(1),
            lac: Some(7),
            master_key: Some(Bytes::copy_from_slice(key().as_bytes())),
            body: Some(body.clone().into()),
        };
        let with = |write| wire::Request { write_lac_request: Some(write), ..message(6) };
        let Incoming::Request(to, Request::WriteLac { lac, body: got, .. }) = decode(&frame(&with(plain.clone())))
        else {
            panic!("expected a request");
        };
        assert_eq!((lac, got), (Some(entry(7)), Bytes::from(body.clone())));
        let answer = client::decode_response_v3(payload(&to.to_frame(&Reply::LacWritten))).unwrap();
        assert_eq!((answer.operation, answer.ledger), (Operation::WriteLac, 1));
        let check = |write: wire::WriteLacRequest, status| check_refused(&with(write), status);
        check(wire::WriteLacRequest { ledger_id: Some(2), ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { lac: Some(8), ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { lac: None, ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { body: None, ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { body: Some(body[..15].to_vec().into()), ..plain.clone() }, Status::BadRequest);
        let long = [&body[..], &[0; 200]].concat();
        check(wire::WriteLacRequest { body: Some(long.into()), ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { master_key: None, ..plain.clone() }, Status::BadRequest);
        check(wire::WriteLacRequest { master_key: Some(Bytes::new()), ..plain }, Status::Unauthorized);
    }

    #[test]
    fn long_polls() {
        let read = |flag, entry_id, previous_lac, time_out| wire::ReadRequest {
            ledger_id: Some(1),
            entry_id: Some(entry_id),
            previous_lac,
            time_out,
            flag,
            ..wire::ReadRequest::default()
        };
        let poll = |target, previous, patience: Option<u64>| Request::LongPoll {
            ledger: ledger(1),
            target,
            previous,
            patience: patience.map(std::time::Duration::from_millis),
        };
        let five = PollTarget::Read(ReadTarget::Entry(entry(5)));
        let cases = [
            (read(Some(2), -1, Some(4), Some(1000)), poll(PollTarget::Next, Some(entry(4)), Some(1000))),
            (read(Some(2), -1, Some(-1), None), poll(PollTarget::Next, None, None)),
            (read(None, 5, Some(4), Some(-9)), poll(five, Some(entry(4)), Some(0))),
            (read(None, -1, Some(4), None), poll(PollTarget::Read(ReadTarget::Last), Some(entry(4)), None)),
        ];
        for (message, expected) in cases {
            assert_eq!(request(&frame(&read_message(message))).1, expected);
        }
        let fencing = wire::ReadRequest {
            master_key: Some(Bytes::copy_from_slice(key().as_bytes())),
            ..read(Some(1), -1, Some(4), Some(1000))
        };
        let got = request(&frame(&read_message(fencing))).1;
        assert_eq!(got, super::read(ledger(1), ReadTarget::Last, true, false), "the fence wins");
    }

    #[test]
    fn answers_to_long_polls() {
        let frame = encoded(|out| {
            client::encode_long_poll_v3(4, ledger(1), PollTarget::Next, Some(entry(6)), None, out);
        });
        let (to, _) = request(&frame);
        let answer = |reply: &Reply| wire::Response::decode(payload(&to.to_frame(reply))).unwrap();
        let found = Reply::Next { max_lac: Some(entry(8)), entry: Some((entry(7), body())), confirmed_ms: Some(5) };
        let read = answer(&found).read_response.unwrap();
        assert_eq!((read.entry_id, read.max_lac, read.lac_update_timestamp), (Some(7), Some(8), Some(5)));
        assert_eq!(read.body, Some(body()));
        let nothing = Reply::Next { max_lac: Some(entry(6)), entry: None, confirmed_ms: None };
        let read = answer(&nothing).read_response.unwrap();
        assert_eq!((read.status, read.entry_id, read.max_lac, read.body), (Some(0), Some(-1), Some(6), None));
        let got = client::decode_response_v3(payload(&to.to_frame(&nothing))).unwrap();
        assert_eq!(got.payload, PayloadV3::Confirmed { max_lac: Some(entry(6)) });
    }

    #[test]
    fn only_what_was_asked_for_is_told_of_the_disks() {
        for (total, free) in [(true, true), (true, false), (false, false)] {
            let frame = encoded(|out| client::encode_bookie_info_v3(4, total, free, out));
            let (to, got) = request(&frame);
            assert_eq!(got, Request::BookieInfo { total, free });
            let reply = Reply::BookieInfo { total_bytes: total.then_some(10), free_bytes: free.then_some(3) };
            let answer = client::decode_response_v3(payload(&to.to_frame(&reply))).unwrap();
            let expected = PayloadV3::BookieInfo { total_bytes: total.then_some(10), free_bytes: free.then_some(3) };
            assert_eq!((answer.payload, answer.ledger), (expected, -1));
        }
        let bare = wire::Request { get_bookie_info_request: Some(wire::GetBookieInfoRequest::default()), ..message(8) };
        assert_eq!(request(&frame(&bare)).1, Request::BookieInfo { total: false, free: false });
    }

    #[test]
    fn of_the_logging_context_only_the_hop_mark_matters() {
        let read = Some(wire::ReadLacRequest { ledger_id: Some(1) });
        let plain = frame(&wire::Request { read_lac_request: read, ..message(7) });
        let with = |context: &[u8]| {
            let mut framed = BytesMut::from(&plain[..]);
            framed.extend_from_slice(context);
            let length = u32::try_from(framed.len() - 4).unwrap();
            framed[..4].copy_from_slice(&length.to_be_bytes());
            framed
        };
        // A pair with the key "request" and no value, twice.
        let (to, got) = request(&with(b"\xc2\x0c\x09\x0a\x07request\xc2\x0c\x09\x0a\x07request"));
        assert_eq!((got, to.is_relayed()), (Request::ReadLac { ledger: ledger(1) }, false));
        let mut marked = BytesMut::from(&b"x"[..]);
        marked.extend_from_slice(&plain);
        client::mark_relayed(1, &mut marked);
        let (to, got) = request(&marked[1..]);
        assert_eq!((got, to.is_relayed()), (Request::ReadLac { ledger: ledger(1) }, true));
        let answer = client::decode_response_v3(payload(&to.to_frame(&Reply::Failed(Status::NoEntry)))).unwrap();
        assert_eq!((answer.txn, answer.ledger), (9, 1), "answered as any other");
    }

    #[test]
    fn adds_that_are_refused() {
        let plain = wire::AddRequest {
            ledger_id: Some(1),
            entry_id: Some(0),
            master_key: Some(Bytes::copy_from_slice(key().as_bytes())),
            body: Some(body()),
            ..wire::AddRequest::default()
        };
        let check = |add: wire::AddRequest, expected| {
            check_refused(&wire::Request { add_request: Some(add), ..message(2) }, expected);
        };
        check(wire::AddRequest { ledger_id: Some(2), ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { ledger_id: None, ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { entry_id: Some(1), ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { entry_id: None, ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { body: Some(body().slice(..23)), ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { body: None, ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { flag: Some(9), ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { master_key: None, ..plain.clone() }, Status::BadRequest);
        check(wire::AddRequest { master_key: Some(Bytes::new()), ..plain }, Status::Unauthorized);
    }

    #[test]
    fn other_operations_get_a_bare_bad_request() {
        for operation in [3, 4, 5, 9, 12, 77] {
            let answer = response(decode(&frame(&message(operation))));
            let header = Some(header(operation));
            let expected =
                wire::Response { header, status: Some(Status::BadRequest.v3()), ..wire::Response::default() };
            assert_eq!(answer, expected);
        }
    }

    #[test]
    fn auth_is_answered_with_the_disabled_plugin() {
        let auth =
            wire::AuthMessage { auth_plugin_name: Some("sasl".to_owned()), payload: Some(Bytes::from_static(b"x")) };
        let answer = response(decode(&frame(&wire::Request { auth_request: Some(auth.clone()), ..message(5) })));
        assert_eq!(answer.status, Some(0));
        let expected =
            wire::AuthMessage { auth_plugin_name: Some("AuthDisabledPlugin".to_owned()), payload: Some(Bytes::new()) };
        assert_eq!(answer.auth_response, Some(expected));
        let nameless = wire::AuthMessage { auth_plugin_name: None, ..auth };
        let answer = response(decode(&frame(&wire::Request { auth_request: Some(nameless), ..message(5) })));
        assert_eq!((answer.status, answer.auth_response), (Some(Status::BadRequest.v3()), None));
    }

    #[test]
    fn start_tls_is_refused_and_the_connection_may_go_on_in_version_2() {
        let mut protocol = Protocol::default();
        let start_tls = wire::Request { start_tls_request: Some(wire::StartTlsRequest {}), ..message(9) };
        let answer = response(decode_request(&mut protocol, payload(&frame(&start_tls))));
        assert_eq!(answer.status, Some(Status::BadRequest.v3()));
        assert_eq!(protocol, Protocol::V3);
        let read = payload(&unhex("00000014 02020000 0000000000000001 0000000000000000"));
        assert!(matches!(decode_request(&mut protocol, read), Incoming::Request(..)));
        assert_eq!(protocol, Protocol::V2);
        // From now on 0x0a is a version byte, not a protobuf header.
        let incoming = decode_request(&mut protocol, payload(&frame(&start_tls)));
        assert!(matches!(incoming, Incoming::Close(_)), "{incoming:?}");
    }

    #[test]
    fn max_lac_goes_with_plain_reads_only() {
        let found = Reply::Read { body: body(), max_lac: None };
        for (fence, expected) in [(None, Some(-1)), (Some(key()), None)] {
            let frame = encoded(|out| {
                client::encode_read_v3(4, ledger(1), ReadTarget::Last, fence.as_ref(), true, out);
            });
            let (to, got) = request(&frame);
            assert!(matches!(got, Request::Read { high_priority: true, .. }));
            let answer = wire::Response::decode(payload(&to.to_frame(&found))).unwrap().read_response.unwrap();
            assert_eq!((answer.entry_id, answer.max_lac, answer.body), (Some(-1), expected, Some(body())));
        }
    }

    #[test]
    fn read_lac_without_any_part_is_no_entry() {
        let frame = encoded(|out| client::encode_read_lac_v3(7, ledger(1), out));
        let (to, got) = request(&frame);
        assert_eq!(got, Request::ReadLac { ledger: ledger(1) });
        for (reply, status) in [
            (Reply::Lac { explicit: None, last_entry: None }, Status::NoEntry),
            (Reply::Lac { explicit: None, last_entry: Some(body()) }, Status::Ok),
            (Reply::Failed(Status::UnknownLedgerState), Status::UnknownLedgerState),
        ] {
            let answer = client::decode_response_v3(payload(&to.to_frame(&reply))).unwrap();
            assert_eq!((answer.txn, answer.operation, answer.status), (7, Operation::ReadLac, status));
            if let Reply::Lac { last_entry: Some(expected), .. } = reply {
                assert_eq!(answer.payload, PayloadV3::Lac { explicit: None, last_entry: Some(expected) });
            }
        }
    }

    #[test]
    fn clients_refuse_contradicting_statuses() {
        let (to, _) = request(&unhex("00000050 0a06080310021801 aa0645 0801 1000 1a14 MK 2229 BODY"));
        let mut answer = wire::Response::decode(payload(&to.to_frame(&Reply::Added))).unwrap();
        answer.status = Some(Status::Io.v3());
        let error = client::decode_response_v3(answer.encode_to_vec().into()).unwrap_err();
        assert_eq!(error, client::ResponseError::StatusMismatch { outer: 501, inner: 0 });
    }

    #[test]
    fn clients_never_take_a_missing_status_for_a_success() {
        let (to, _) = request(&unhex("00000050 0a06080310021801 aa0645 0801 1000 1a14 MK 2229 BODY"));
        let whole = wire::Response::decode(payload(&to.to_frame(&Reply::Added))).unwrap();
        let mut outer = whole.clone();
        outer.status = None;
        let mut inner = whole.clone();
        inner.add_response.as_mut().unwrap().status = None;
        let mut missing = whole;
        missing.add_response = None;
        for answer in [outer, inner, missing] {
            let error = client::decode_response_v3(answer.encode_to_vec().into()).unwrap_err();
            assert_eq!(error, client::ResponseError::Malformed, "{answer:?}");
        }
    }
}

#[test]
fn bodies_are_slices_of_the_frame() {
    let frame = payload(&unhex("00000050 0a06080310021801 aa0645 0801 1000 1a14 MK 2229 BODY"));
    let range = frame.as_ptr_range();
    let Incoming::Request(_, Request::Add { body, .. }) = decode_request(&mut Protocol::default(), frame.clone())
    else {
        panic!("expected an add");
    };
    assert!(range.contains(&body.as_ptr()), "the body must not be copied");
}

#[test]
fn empty_and_foreign_frames_close() {
    assert_eq!(decode_request(&mut Protocol::default(), Bytes::new()), Incoming::Close(CloseReason::Truncated));
    let http = Bytes::from_static(b"GET / HTTP/1.1");
    assert_eq!(decode_request(&mut Protocol::default(), http), Incoming::Close(CloseReason::UnknownProtocol(b'G')));
}

fn any_status() -> impl Strategy<Value = Status> {
    prop::sample::select(&Status::ALL[1..])
}

fn any_target() -> impl Strategy<Value = ReadTarget> {
    prop_oneof![Just(ReadTarget::Last), (0..=i64::MAX).prop_map(|id| ReadTarget::Entry(EntryId::new(id).unwrap()))]
}

prop_compose! {
    fn any_add()(
        ledger in 0..=i64::MAX,
        entry in 0..=i64::MAX,
        rest in prop::collection::vec(any::<u8>(), 8..100),
        master_key in any::<[u8; 20]>(),
        recovery: bool,
        high_priority: bool,
        deferred_sync: bool,
    ) -> Request {
        let body = [&ledger.to_be_bytes()[..], &entry.to_be_bytes()[..], &rest].concat().into();
        Request::Add {
            ledger: LedgerId::new(ledger).unwrap(),
            entry: EntryId::new(entry).unwrap(),
            master_key: MasterKey::from_bytes(master_key),
            body, recovery, high_priority, deferred_sync,
        }
    }
}

prop_compose! {
    fn any_read()(
        ledger in 0..=i64::MAX,
        target in any_target(),
        master_key in any::<Option<[u8; 20]>>(),
        high_priority: bool,
    ) -> Request {
        let master_key = master_key.map(MasterKey::from_bytes);
        Request::Read { ledger: LedgerId::new(ledger).unwrap(), target, fence: master_key.is_some(), master_key, high_priority }
    }
}

prop_compose! {
    fn any_batch_read()(
        ledger in any_ledger(),
        start in (0..=i64::MAX).prop_map(|id| EntryId::new(id).unwrap()),
        count_max in prop::option::of(1..=i32::MAX as u32),
        bytes_max in 0..=i64::MAX as u64,
        master_key in any::<Option<[u8; 20]>>(),
        high_priority: bool,
    ) -> Request {
        let master_key = master_key.map(MasterKey::from_bytes);
        Request::BatchRead { ledger, start, count_max, bytes_max, fence: master_key.is_some(), master_key, high_priority }
    }
}

prop_compose! {
    fn any_long_poll()(
        ledger in any_ledger(),
        target in prop_oneof![Just(PollTarget::Next), any_target().prop_map(PollTarget::Read)],
        previous in (-1..=i64::MAX).prop_map(|id| EntryId::option_from_i64(id).unwrap()),
        patience in prop::option::of(0..=i64::MAX as u64),
    ) -> Request {
        let patience = patience.map(std::time::Duration::from_millis);
        Request::LongPoll { ledger, target, previous, patience }
    }
}

prop_compose! {
    fn any_write_lac()(
        ledger in any_ledger(),
        lac in (-1..=i64::MAX).prop_map(|id| EntryId::option_from_i64(id).unwrap()),
        master_key in any::<[u8; 20]>(),
        digest in prop::collection::vec(any::<u8>(), 0..=20),
    ) -> Request {
        let lac_bytes = EntryId::option_to_i64(lac).to_be_bytes();
        let body = [&ledger.as_i64().to_be_bytes()[..], &lac_bytes, &digest].concat().into();
        Request::WriteLac { ledger, lac, master_key: MasterKey::from_bytes(master_key), body }
    }
}

fn any_ledger() -> impl Strategy<Value = LedgerId> {
    (0..=i64::MAX).prop_map(|id| LedgerId::new(id).unwrap())
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any_add(),
        any_read(),
        any_batch_read(),
        any_long_poll(),
        any_write_lac(),
        any_ledger().prop_map(|ledger| Request::ReadLac { ledger }),
        any_ledger().prop_map(|ledger| Request::ForceLedger { ledger }),
        any_ledger().prop_map(|ledger| Request::ListEntries { ledger }),
        (any::<bool>(), any::<bool>()).prop_map(|(total, free)| Request::BookieInfo { total, free }),
    ]
}

/// Encodes a request the way our client does; version 2 cannot carry everything.
fn encode(request: &Request, txn: u64, v3: bool) -> Option<Bytes> {
    let mut out = BytesMut::new();
    match request {
        Request::Add { ledger, entry, master_key, body, recovery, high_priority, deferred_sync } => {
            let flags = AddFlags { recovery: *recovery, high_priority: *high_priority };
            if v3 {
                client::encode_add_v3(txn, *ledger, *entry, master_key, body, flags, *deferred_sync, &mut out);
            } else if *deferred_sync {
                return None;
            } else {
                client::encode_add_v2(master_key, body, flags, &mut out);
            }
        }
        Request::Read { ledger, target, master_key, high_priority, .. } => {
            if v3 {
                client::encode_read_v3(txn, *ledger, *target, master_key.as_ref(), *high_priority, &mut out);
            } else {
                client::encode_read_v2(*ledger, *target, master_key.as_ref(), *high_priority, &mut out);
            }
        }
        Request::BatchRead { ledger, start, count_max, bytes_max, master_key, high_priority, .. } if !v3 => {
            let read = BatchRead {
                ledger: *ledger,
                start: *start,
                request: txn as i64,
                count_max: *count_max,
                bytes_max: *bytes_max,
                fence: master_key.as_ref(),
                high_priority: *high_priority,
            };
            client::encode_batch_read_v2(&read, &mut out);
        }
        Request::LongPoll { ledger, target, previous, patience } if v3 => {
            client::encode_long_poll_v3(txn, *ledger, *target, *previous, *patience, &mut out);
        }
        Request::WriteLac { ledger, lac, master_key, body } if v3 => {
            client::encode_write_lac_v3(txn, *ledger, *lac, master_key, body, &mut out);
        }
        Request::ReadLac { ledger } if v3 => client::encode_read_lac_v3(txn, *ledger, &mut out),
        Request::ForceLedger { ledger } if v3 => client::encode_force_ledger_v3(txn, *ledger, &mut out),
        Request::BookieInfo { total, free } if v3 => client::encode_bookie_info_v3(txn, *total, *free, &mut out),
        Request::ListEntries { ledger } if v3 => client::encode_list_entries_v3(txn, *ledger, &mut out),
        _ => return None,
    }
    Some(out.freeze())
}

fn success(request: &Request, body: Bytes, lac: Option<EntryId>) -> Reply {
    match request {
        Request::Add { .. } => Reply::Added,
        Request::Read { .. } => Reply::Read { body, max_lac: lac },
        Request::BatchRead { .. } => Reply::Batch { entries: vec![body.clone(), Bytes::new(), body] },
        Request::LongPoll { target: PollTarget::Read(_), .. } => Reply::Read { body, max_lac: lac },
        Request::LongPoll { .. } => Reply::Next { max_lac: lac, entry: lac.map(|id| (id, body)), confirmed_ms: None },
        Request::WriteLac { .. } => Reply::LacWritten,
        Request::ReadLac { .. } => Reply::Lac { explicit: lac.map(|_| body.clone()), last_entry: Some(body) },
        Request::ForceLedger { .. } => Reply::Forced,
        Request::BookieInfo { total, free } => {
            Reply::BookieInfo { total_bytes: total.then_some(7), free_bytes: free.then_some(body.len() as u64) }
        }
        Request::ListEntries { .. } => {
            let mut list = AvailabilityWriter::default();
            lac.into_iter().for_each(|id| list.push(id));
            Reply::Entries(list.finish())
        }
    }
}

/// What a client reads of a success in version 3.
fn payload_of(wanted: &Request, sent: Reply) -> PayloadV3 {
    match sent {
        Reply::Read { body, max_lac } => {
            let fence = matches!(wanted, Request::Read { fence: true, .. });
            PayloadV3::Entry { body, max_lac: if fence { None } else { max_lac } }
        }
        Reply::Next { max_lac, entry: Some((_, body)), .. } => PayloadV3::Entry { body, max_lac },
        Reply::Next { max_lac, entry: None, .. } => PayloadV3::Confirmed { max_lac },
        Reply::Lac { explicit, last_entry } => PayloadV3::Lac { explicit, last_entry },
        Reply::BookieInfo { total_bytes, free_bytes } => PayloadV3::BookieInfo { total_bytes, free_bytes },
        Reply::Entries(list) => PayloadV3::Entries(Availability::decode(list).unwrap()),
        Reply::Batch { .. } => unreachable!("version 2 only"),
        Reply::Added | Reply::LacWritten | Reply::Forced | Reply::Failed(_) => PayloadV3::None,
    }
}

proptest! {
    #[test]
    fn requests_round_trip(wanted in any_request(), txn: u64, v3: bool) {
        if let Some(frame) = encode(&wanted, txn, v3) {
            prop_assert_eq!(request(&frame).1, wanted);
        }
    }

    #[test]
    fn replies_round_trip(
        wanted in any_request(),
        txn: u64,
        v3: bool,
        status in any_status(),
        failed: bool,
        body in prop::collection::vec(any::<u8>(), 0..100).prop_map(Bytes::from),
        lac in prop::option::of(0..=i64::MAX).prop_map(|lac| lac.and_then(EntryId::new)),
    ) {
        let Some(frame) = encode(&wanted, txn, v3) else { return Ok(()) };
        let (to, _) = request(&frame);
        let sent = if failed { Reply::Failed(status) } else { success(&wanted, body.clone(), lac) };
        let expected_status = if failed { status } else { Status::Ok };
        let expected_entry = match (&wanted, &sent) {
            (_, Reply::Next { entry: Some((id, _)), .. }) => id.as_i64(),
            (Request::Add { entry, .. }, _) => entry.as_i64(),
            (Request::BatchRead { start, .. }, _) => start.as_i64(),
            (Request::Read { target, .. } | Request::LongPoll { target: PollTarget::Read(target), .. }, _) => {
                target.as_i64()
            }
            _ => -1,
        };
        let expected_ledger = wanted.ledger().map_or(-1, LedgerId::as_i64);
        let answer = payload(&to.to_frame(&sent));
        let told_v2 = if expected_status == Status::UnknownLedgerState { Status::Io } else { expected_status };
        if v3 {
            let got = client::decode_response_v3(answer).unwrap();
            prop_assert_eq!((got.txn, got.status), (txn, expected_status));
            prop_assert_eq!((got.ledger, got.entry), (expected_ledger, expected_entry));
            prop_assert_eq!(got.payload, payload_of(&wanted, sent));
        } else if let Request::BatchRead { .. } = &wanted {
            let got = client::decode_batch_response_v2(answer).unwrap();
            prop_assert_eq!((got.request, got.status), (txn as i64, told_v2));
            prop_assert_eq!((got.ledger, got.start), (expected_ledger, expected_entry));
            let expected = if let Reply::Batch { entries } = sent { entries } else { Vec::new() };
            prop_assert_eq!(got.entries, expected);
        } else {
            let got = client::decode_response_v2(answer).unwrap();
            prop_assert_eq!(got.status, told_v2);
            prop_assert_eq!((got.ledger, got.entry), (expected_ledger, expected_entry));
            let expected = if let Reply::Read { body, .. } = sent { body } else { Bytes::new() };
            prop_assert_eq!(got.body, expected);
        }
    }

    /// A cut frame is either refused or lost only a tail that carries no meaning: it never becomes another request.
    #[test]
    fn truncations_never_misparse(wanted in any_request(), txn: u64, v3: bool, cut in any::<prop::sample::Index>()) {
        let Some(frame) = encode(&wanted, txn, v3) else { return Ok(()) };
        let whole = frame.slice(4..);
        let part = whole.slice(..cut.index(whole.len()));
        match (decode_request(&mut Protocol::default(), part), &wanted) {
            (Incoming::Request(_, got), Request::Add { ledger, entry, body, .. }) if !v3 => {
                // Version 2 has no length of its own for the body: only the frame length ends it.
                let Request::Add { ledger: got_ledger, entry: got_entry, body: got_body, .. } = &got else {
                    panic!("an add became {got:?}");
                };
                prop_assert_eq!((got_ledger, got_entry), (ledger, entry));
                prop_assert!(body.starts_with(got_body));
            }
            (Incoming::Request(_, got), _) => panic!("a cut {wanted:?} became {got:?}"),
            (Incoming::Reply(_) | Incoming::Close(_), _) => {}
        }
    }

    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        first in prop::sample::select(vec![0u8, 1, 2, 3, 0x0a]),
        force: bool,
        sticky: bool,
    ) {
        if let (true, Some(byte)) = (force, bytes.first_mut()) {
            *byte = first;
        }
        let bytes = Bytes::from(bytes);
        let mut protocol = if sticky { Protocol::V2 } else { Protocol::Undecided };
        if let Incoming::Request(to, _) = decode_request(&mut protocol, bytes.clone()) {
            let _ = to.to_frame(&Reply::Failed(Status::Io));
        }
        let _ = client::decode_response_v2(bytes.clone());
        let _ = client::decode_batch_response_v2(bytes.clone());
        let _ = client::decode_response_v3(bytes);
    }

    #[test]
    fn altered_frames_never_panic(wanted in any_request(), v3: bool, at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let Some(frame) = encode(&wanted, 5, v3) else { return Ok(()) };
        let mut bytes = frame[4..].to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = decode_request(&mut Protocol::default(), bytes.into());
    }
    #[test]
    fn altered_replies_never_panic(
        wanted in any_request(),
        v3: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let Some(frame) = encode(&wanted, 5, v3) else { return Ok(()) };
        let (to, _) = request(&frame);
        let mut bytes = to.to_frame(&success(&wanted, body(), EntryId::new(3_u64)))[4..].to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bytes = Bytes::from(bytes);
        let _ = client::decode_response_v2(bytes.clone());
        let _ = client::decode_batch_response_v2(bytes.clone());
        let _ = client::decode_response_v3(bytes);
    }
}
