use proto::client::{PayloadV3, decode_response_v3, encode_add_v3, encode_read_lac_v3, encode_read_v3};

use super::support::*;
use bytes::{Bytes, BytesMut};
use ledger::MasterKey;
use proto::client::AddFlags;
use proto::{ReadTarget, Status};

/// Sends a frame in hex and expects another.
async fn exchange(wire: &mut Wire, request: &str, reply: &str) {
    let clean = |text: &str| text.replace(' ', "");
    wire.send_raw(&hex::decode(clean(request)).unwrap()).await;
    let frame = wire.frame().await.unwrap();
    let mut whole = (frame.len() as u32).to_be_bytes().to_vec();
    whole.extend_from_slice(&frame);
    assert_eq!(hex::encode(whole), clean(reply));
}

const KEY: &str = "850bf1071c5e3d8c24235676f8816ae0cbe2f14f";
const BODY: &str = "0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005 e3a5f74d 68656c6c6f";

#[tokio::test]
async fn the_published_vectors_hold() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let add = format!("00000041 02010000 {KEY} {BODY}");
    exchange(&mut wire, &add, "00000018 02010000 00000000 0000000000000001 0000000000000000").await;
    let read = "00000014 02020000 0000000000000001 0000000000000000";
    let found = format!("00000041 02020000 00000000 0000000000000001 0000000000000000 {BODY}");
    exchange(&mut wire, read, &found).await;
    let missing = "00000014 02020000 0000000000000001 0000000000000009";
    exchange(&mut wire, missing, "00000018 02020000 00000002 0000000000000001 0000000000000009").await;
    let fencing = format!("00000028 02020001 0000000000000001 ffffffffffffffff {KEY}");
    let last = format!("00000041 02020000 00000000 0000000000000001 ffffffffffffffff {BODY}");
    exchange(&mut wire, &fencing, &last).await;
    let recovery = format!("00000028 02020005 0000000000000001 0000000000000007 {KEY}");
    exchange(&mut wire, &recovery, "00000018 02020000 00000002 0000000000000001 0000000000000007").await;
    exchange(&mut wire, &add, "00000018 02010000 00000068 0000000000000001 0000000000000000").await;
    let batch = "00000028 02070000 0000000000000001 0000000000000000 000000000000004d 0000000a 0000000000500000";
    let one = format!("0000004d 02070000 00000000 0000000000000001 0000000000000000 000000000000004d 00000029 {BODY}");
    exchange(&mut wire, batch, &one).await;
    let beyond = "00000028 02070000 0000000000000001 0000000000000009 000000000000004d 0000000a 0000000000500000";
    let none = "00000020 02070000 00000002 0000000000000001 0000000000000009 000000000000004d";
    exchange(&mut wire, beyond, none).await;
    let auth = "0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200";
    exchange(&mut wire, auth, auth).await;

    let mut wire = running.connect().await;
    let body = BODY.replace(' ', "").replacen("0000000000000001", "0000000000000002", 1);
    let add = format!("00000050 0a06080310021801 aa0645 0802 1000 1a14 {KEY} 2229 {body}");
    exchange(&mut wire, &add, "00000013 0a06080310021801 1000 aa0606 080010021800").await;
    let fencing = format!("00000031 0a06080310011802 a20626 0802 10ffffffffffffffffff01 1a14 {KEY} a00601");
    // Without maxLAC: status, ledger, entry -1, body.
    let last = format!("00000047 0a06080310011802 1000 a2063a 08001002 18ffffffffffffffffff01 2229 {body}");
    exchange(&mut wire, &fencing, &last).await;
    let (lac, ok) = ("00000000000000020000000000000029ee4119b0", "00000011 0a06080310061803 1000 ba0604 08001002");
    let write = format!("0000003b 0a06080310061803 ba0630 08021029 1a14 {KEY} 2214 {lac}");
    exchange(&mut wire, &write, ok).await;
    exchange(&mut wire, "0000000d 0a060803100a1804 da0602 0802", "00000011 0a060803100a1804 1000 da0604 08001002")
        .await;
    running.stop().await;
}

/// Version 3 frames do not bind a connection: START_TLS comes in that form before version 2 too.
#[tokio::test]
async fn what_version_3_has_no_messages_for_is_a_bad_request_and_the_connection_goes_on() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    for (operation, sub_message) in [("03", ""), ("04", ""), ("09", "d20600"), ("0c", "")] {
        let length = 8 + sub_message.len() / 2;
        let request = format!("{length:08x} 0a060803 10{operation} 1805 {sub_message}");
        exchange(&mut wire, &request, &format!("0000000b 0a060803 10{operation} 1805 109403")).await;
    }
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok, "in version 2 now");
    // From now on 0x0a is a version byte of version 2, and no such version has this operation.
    wire.send_raw(&hex::decode("000000080a06080310071806").unwrap()).await;
    assert_eq!(wire.frame().await, None);
    running.stop().await;
}

#[tokio::test]
async fn version_3_reads_tell_the_last_confirmed() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let mut out = BytesMut::new();
    for e in 0..3 {
        let sealed = body(1, e, b"x");
        encode_add_v3(e, ledger(1), entry(e), &key(), &sealed, AddFlags::default(), false, &mut out);
    }
    wire.send_raw(&out.split()).await;
    for _ in 0..3 {
        assert_eq!(decode_response_v3(wire.frame().await.unwrap()).unwrap().status, Status::Ok);
    }
    encode_read_v3(10, ledger(1), ReadTarget::Entry(entry(0)), None, false, &mut out);
    encode_read_lac_v3(11, ledger(1), &mut out);
    encode_read_lac_v3(12, ledger(99), &mut out);
    encode_read_v3(13, ledger(99), ReadTarget::Last, None, false, &mut out);
    wire.send_raw(&out.split()).await;
    let mut replies = Vec::new();
    for _ in 0..4 {
        replies.push(decode_response_v3(wire.frame().await.unwrap()).unwrap());
    }
    replies.sort_by_key(|reply| reply.txn);
    assert_eq!(replies[0].payload, PayloadV3::Entry { body: body(1, 0, b"x"), max_lac: Some(entry(1)) });
    let last: Bytes = body(1, 2, b"x");
    assert_eq!(replies[1].payload, PayloadV3::Lac { explicit: None, last_entry: Some(last) });
    assert_eq!((replies[2].status, replies[3].status), (Status::NoEntry, Status::NoLedger));
    running.stop().await;
}

#[tokio::test]
async fn broken_frames_get_what_the_protocol_says_and_harm_nobody() {
    let world = World::new();
    let running = world.start().await;
    let mut good = running.connect().await;
    assert_eq!(good.add(1, 0, b"x").await, Status::Ok);
    for frame in [
        "ffffffff00",
        "7fffffff00",
        "00000004 05ffffff",
        "00000004 02090000",
        "00000008 0201000000000000",
        "00000001 0a",
    ] {
        let mut wire = running.connect().await;
        wire.send_raw(&hex::decode(frame.replace(' ', "")).unwrap()).await;
        assert_eq!(wire.frame().await, None, "{frame}");
    }
    let mut wire = running.connect().await;
    let negative = "00000014 02020000 ffffffffffffffff 0000000000000000";
    exchange(&mut wire, negative, "00000018 02020000 00000064 ffffffffffffffff 0000000000000000").await;
    assert_eq!(good.read(1, 0).await.unwrap(), body(1, 0, b"x"));
    running.stop().await;
}

#[tokio::test]
async fn a_wrong_key_changes_nothing() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    let other = MasterKey::derive(b"other");
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    for flags in [AddFlags::default(), RECOVERY] {
        assert_eq!(wire.add_as(1, 1, b"y", &other, flags).await, Status::Unauthorized);
    }
    assert_eq!(wire.fence(1, &other).await, Err(Status::Unauthorized));
    assert_eq!(wire.read(1, 1).await, Err(Status::NoEntry));
    assert_eq!(wire.add(1, 1, b"y").await, Status::Ok, "the ledger was not fenced");
    running.stop().await;
}

#[tokio::test]
async fn the_latest_bytes_of_an_entry_win_everywhere() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    wire.put_add(1, 5, b"first", &key(), AddFlags::default());
    wire.put_add(1, 5, b"second", &key(), AddFlags::default());
    wire.send().await;
    assert_eq!((wire.reply().await.status, wire.reply().await.status), (Status::Ok, Status::Ok));
    assert_eq!(wire.read(1, 5).await.unwrap(), body(1, 5, b"second"));
    wire.fill(&running, 2, 0, 1).await;
    assert_eq!(wire.read(1, 5).await.unwrap(), body(1, 5, b"second"), "from a sealed segment");
    assert_eq!(wire.add(1, 5, b"third").await, Status::Ok);
    assert_eq!(wire.read(1, 5).await.unwrap(), body(1, 5, b"third"), "an open segment hides a sealed one");
    wire.fill(&running, 2, 1_000, 2).await;
    assert_eq!(wire.read(1, 5).await.unwrap(), body(1, 5, b"third"), "the newer sealed segment wins");
    let world = world.crash(running).await;
    let running = world.start().await;
    assert_eq!(running.connect().await.read(1, 5).await.unwrap(), body(1, 5, b"third"));
    running.stop().await;
}

#[tokio::test]
async fn answers_to_the_same_key_come_in_order() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    // A read that fences stands before a plain one of the same entry; the plain one would be answered at once.
    wire.put_read(1, ReadTarget::Last, Some(&key()));
    wire.put_read(1, ReadTarget::Last, None);
    wire.send().await;
    let (first, second) = (wire.reply().await, wire.reply().await);
    assert_eq!((first.status, second.status), (Status::NoEntry, Status::NoEntry), "both see the ledger the fence made");
    // An add that is refused at once stays behind the same add that was accepted before.
    wire.put_add(2, 0, b"x", &key(), AddFlags::default());
    wire.put_add(2, 0, b"x", &MasterKey::derive(b"other"), AddFlags::default());
    wire.send().await;
    assert_eq!((wire.reply().await.status, wire.reply().await.status), (Status::Ok, Status::Unauthorized));
    running.stop().await;
}

#[tokio::test]
async fn many_requests_at_once_are_each_answered_once() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    const COUNT: u64 = 2_000;
    for e in 0..COUNT {
        wire.put_add(e % 7, e, &payload(e % 7, e), &key(), AddFlags::default());
    }
    let (mut adds, mut next) = (Vec::new(), running.connect().await);
    wire.send().await;
    for _ in 0..COUNT {
        let reply = wire.reply().await;
        assert_eq!(reply.status, Status::Ok);
        adds.push(reply.entry);
    }
    assert_eq!(adds, (0..COUNT as i64).collect::<Vec<_>>(), "adds of a connection are answered in order");
    for e in (0..COUNT).rev() {
        next.put_read(e % 7, ReadTarget::Entry(entry(e)), None);
    }
    next.send().await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..COUNT {
        let reply = next.reply().await;
        let e = reply.entry as u64;
        assert_eq!(reply.status, Status::Ok, "entry {e}");
        assert_eq!(reply.body, body(e % 7, e, &payload(e % 7, e)));
        assert!(seen.insert(e));
    }
    running.stop().await;
}
