use ledger::{LedgerState, Quorums};
use metadata::{FaultKind, FaultyStore, Ledgers};
use proto::Status;

use super::fake::Behaviour;
use super::*;
use crate::ErrorKind;

async fn state(cluster: &Cluster, writer: &LedgerWriter) -> LedgerState {
    let record = Ledgers::new(Arc::clone(&cluster.store)).get_quorum(writer.id()).await.unwrap().unwrap();
    record.metadata.state()
}

#[tokio::test(start_paused = true)]
async fn recovery_fences_the_writer_and_keeps_what_was_confirmed() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..100).await;
    // The same client recovers: its fencing reads and the writer's adds must not be mixed up.
    let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
    assert_eq!(reader.last_confirmed().await.unwrap(), Some(id(99)));
    let failed = writer.append(payload(100)).await.unwrap().await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Fenced);
    assert_eq!(writer.append(payload(101)).await.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::Fenced);
    assert_holds(&reader, 100).await;
    let length = (0..100).map(|entry| payload(entry).len() as u64).sum();
    assert_eq!(state(&cluster, &writer).await, LedgerState::Closed { last_entry: Some(id(99)), length });
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_entry_of_one_replica_is_recovered_to_all() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 3)).await.unwrap();
    append_all(&writer, 0..10).await;
    // Entry 10 reaches member 1 only.
    cluster.member(&writer, 0).behave(Behaviour::RefusingAdds(Status::TooManyRequests));
    cluster.member(&writer, 2).behave(Behaviour::RefusingAdds(Status::TooManyRequests));
    assert!(writer.append(payload(10)).await.unwrap().await.unwrap_err().may_have_happened());
    for index in [0, 2] {
        cluster.member(&writer, index).behave(Behaviour::Normal);
    }
    let other = cluster.another_client();
    let Opened::Hot(reader) = other.open(writer.id(), OpenMode::Recover, None).await.unwrap() else {
        panic!("not released")
    };
    assert_holds(&reader, 11).await;
    for index in 0..3 {
        let body = cluster.member(&writer, index).body(writer.id(), id(10)).unwrap();
        assert_eq!(ledger::peek(&body).unwrap().entry, id(10));
        assert!(cluster.member(&writer, index).is_fenced(writer.id()));
    }
    assert!(cluster.member(&writer, 0).recovery_adds() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_is_waited_for_once_and_not_at_every_entry() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..10).await;
    // One member has many entries more than the others, and another says nothing.
    for index in [0, 1] {
        cluster.member(&writer, index).behave(Behaviour::RefusingAdds(Status::TooManyRequests));
    }
    let mut appends = Vec::new();
    for entry in 10..200 {
        match writer.append(payload(entry)).await {
            Ok(append) => appends.push(append),
            Err(_) => break,
        }
    }
    futures::future::join_all(appends).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    cluster.member(&writer, 0).behave(Behaviour::Silent);
    cluster.member(&writer, 1).behave(Behaviour::Normal);
    let member = cluster.member(&writer, 2);
    let held = (0..200).filter(|entry| member.body(writer.id(), id(*entry)).is_some()).count();
    assert!(held > 100, "{held} entries to recover");
    let begin = tokio::time::Instant::now();
    let other = cluster.another_client();
    let Opened::Hot(reader) = other.open(writer.id(), OpenMode::Recover, None).await.unwrap() else {
        panic!("not released")
    };
    assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_holds(&reader, held as u64).await;
}

#[tokio::test(start_paused = true)]
async fn a_recovery_that_cannot_tell_fails_and_can_be_repeated() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..10).await;
    cluster.bookies[0].behave(Behaviour::RefusingReads(Status::Io));
    cluster.bookies[1].behave(Behaviour::RefusingReads(Status::Io));
    let failed = cluster.open(&writer, OpenMode::Recover).await.map(|_| ()).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unknown);
    assert_eq!(state(&cluster, &writer).await, LedgerState::InRecovery);
    cluster.bookies[0].behave(Behaviour::Normal);
    let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
    assert_holds(&reader, 10).await;
}

#[tokio::test(start_paused = true)]
async fn damage_at_the_tail_never_shortens_a_ledger() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..10).await;
    for bookie in &cluster.bookies[..2] {
        let mut body = bookie.body(writer.id(), id(9)).unwrap().to_vec();
        *body.last_mut().unwrap() ^= 1;
        bookie.put(writer.id(), id(9), Bytes::from(body));
    }
    // Two damaged bodies say nothing about the end; the third replica alone does not cover.
    let failed = cluster.open(&writer, OpenMode::Recover).await.map(|_| ()).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Damaged);
    assert_eq!(state(&cluster, &writer).await, LedgerState::InRecovery);
}

#[tokio::test(start_paused = true)]
async fn an_empty_ledger_recovers_to_empty() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
    assert_eq!(reader.last_confirmed().await.unwrap(), None);
    assert_eq!(state(&cluster, &writer).await, LedgerState::Closed { last_entry: None, length: 0 });
    assert!(read_all(&reader, 0..1).await[0].is_err());
}

#[tokio::test(start_paused = true)]
async fn clients_that_recover_at_once_agree() {
    let cluster = Cluster::start(5).await;
    let writer = cluster.client.create(options(5, 3, 2)).await.unwrap();
    append_all(&writer, 0..57).await;
    let opened = futures::future::join_all((0..4).map(|_| {
        let client = cluster.another_client();
        let ledger = writer.id();
        async move { client.open(ledger, OpenMode::Recover, None).await }
    }));
    for opened in opened.await {
        let Ok(Opened::Hot(reader)) = opened else { panic!("a recovery failed") };
        assert_eq!(reader.metadata().last_entry(), Some(id(56)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_metadata_write_does_not_stop_a_recovery() {
    for fault in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let faulty = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let cluster = Cluster::start_on(3, Arc::clone(&faulty) as Arc<dyn MetadataStore>, BUDGET_BYTES).await;
        let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
        append_all(&writer, 0..3).await;
        faulty.fail_next(fault);
        faulty.fail_next(fault);
        let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
        assert_holds(&reader, 3).await;
        assert_eq!(faulty.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn all_digests_recover() {
    for digest in [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c, DigestType::Dummy] {
        let cluster = Cluster::start(3).await;
        let quorums = Quorums::new(3, 2, 2).unwrap();
        let writer = cluster.client.create(CreateOptions { digest, quorums, ..options(3, 2, 2) }).await.unwrap();
        append_all(&writer, 0..20).await;
        let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
        assert_holds(&reader, 20).await;
    }
}
