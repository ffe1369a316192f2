use super::support::*;
use ledger::MasterKey;
use proto::client::AddFlags;
use proto::{ReadTarget, Status};

#[tokio::test]
async fn a_fence_holds_after_a_crash_even_when_the_answer_was_no_entry() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    assert_eq!(wire.fence(1, &key()).await.unwrap(), body(1, 0, b"x"));
    assert_eq!(wire.recovery_read(2, 7).await, Err(Status::NoEntry), "an unknown ledger is made, fenced");
    assert_eq!(wire.recovery_read(3, 0).await, Err(Status::NoEntry));
    assert_eq!(wire.fence(2, &MasterKey::derive(b"other")).await, Err(Status::Unauthorized));
    let mut world = world.crash(running).await;
    for _ in 0..3 {
        let running = world.start().await;
        let mut wire = running.connect().await;
        for l in 1..=3 {
            assert_eq!(wire.add(l, 9, b"late").await, Status::Fenced, "ledger {l}");
            assert_eq!(wire.read(l, 9).await, Err(Status::NoEntry));
        }
        assert_eq!(
            wire.add_as(2, 9, b"late", &MasterKey::derive(b"other"), AddFlags::default()).await,
            Status::Unauthorized
        );
        assert_eq!(wire.recover(1, 1, b"recovered").await, Status::Ok);
        assert_eq!(wire.read_last(1).await.unwrap(), body(1, 1, b"recovered"));
        world = world.crash(running).await;
    }
}

#[tokio::test]
async fn a_key_shown_after_the_fence_holds_after_a_crash() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.fence(1, &MasterKey::EMPTY).await, Err(Status::NoEntry), "a tool that does not know the key");
    assert_eq!(wire.fence(1, &key()).await, Err(Status::NoEntry));
    assert_eq!(wire.recover(1, 0, b"recovered").await, Status::Ok);
    let world = world.crash(running).await;
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.fence(1, &MasterKey::derive(b"other")).await, Err(Status::Unauthorized));
    assert_eq!(wire.fence(1, &key()).await.unwrap(), body(1, 0, b"recovered"));
    // A key that cannot be stored is not answered as if it were.
    assert_eq!(wire.fence(2, &MasterKey::EMPTY).await, Err(Status::NoEntry));
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(wire.fence(2, &key()).await, Err(Status::Io));
    running.stop().await;
}

#[tokio::test]
async fn adds_before_a_fence_are_visible_to_it_and_adds_after_it_are_refused() {
    let world = World::new();
    let running = world.start().await;
    let (mut writer, mut other) = (running.connect().await, running.connect().await);
    for round in 0..20_u64 {
        let l = 100 + round;
        for e in 0..50 {
            writer.put_add(l, e, b"x", &key(), AddFlags::default());
        }
        other.put_read(l, ReadTarget::Last, Some(&key()));
        let ((), ()) = tokio::join!(writer.send(), other.send());
        let fenced = other.reply().await;
        let mut acknowledged = None;
        for e in 0..50_u64 {
            let reply = writer.reply().await;
            match reply.status {
                Status::Ok => acknowledged = Some(e),
                Status::Fenced => {}
                status => panic!("{status:?}"),
            }
        }
        let seen = match fenced.status {
            Status::Ok => Some(ledger::peek(&fenced.body).unwrap().entry.get()),
            Status::NoEntry => None,
            status => panic!("{status:?}"),
        };
        assert_eq!(seen, acknowledged, "the fence saw exactly what was ever acknowledged");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_fence_that_cannot_be_stored_is_not_told() {
    let world = World::new();
    let running = world.start().await;
    let mut wire = running.connect().await;
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    world.disk.fail_syncs(Some("the cable fell out"));
    assert_eq!(wire.fence(1, &key()).await, Err(Status::Io));
    assert_eq!(wire.recovery_read(1, 5).await, Err(Status::Io), "not even that an entry is missing");
    assert_eq!(wire.recovery_read(2, 5).await, Err(Status::Io));
    assert_eq!(wire.read(1, 0).await.unwrap(), body(1, 0, b"x"), "plain reads go on");
    running.stop().await;
}
