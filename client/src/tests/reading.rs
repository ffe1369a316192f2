use std::time::Duration;

use ledger::ColdId;
use metadata::Ledgers;
use proto::Status;
use tokio::time::Instant;

use super::fake::Behaviour;
use super::*;
use crate::ErrorKind;

async fn closed(cluster: &Cluster, entries: u64) -> LedgerWriter {
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..entries).await;
    writer.close().await.unwrap();
    writer
}

#[tokio::test(start_paused = true)]
async fn a_dead_bookie_costs_one_failed_attempt_not_one_an_entry() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 3000).await;
    cluster.network.cut(&cluster.bookies[0].address);
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    assert_holds(&reader, 3000).await;
    let reads: u64 = cluster.bookies.iter().map(FakeBookie::reads).sum();
    assert_eq!(reads, 3000);
}

#[tokio::test(start_paused = true)]
async fn a_silent_bookie_delays_a_read_once() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 1000).await;
    cluster.bookies[2].behave(Behaviour::Silent);
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let begin = Instant::now();
    assert_holds(&reader, 1000).await;
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn when_nobody_answers_the_error_says_so() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 3).await;
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    for bookie in &cluster.bookies {
        cluster.network.cut(&bookie.address);
    }
    let read = read_all(&reader, 0..3).await;
    assert_eq!(read.len(), 1, "the stream ends with its first error");
    assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_comes_back_is_used_again() {
    let cluster = Cluster::start(1).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    append_all(&writer, 0..10).await;
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    cluster.network.cut(&cluster.bookies[0].address);
    assert!(read_all(&reader, 0..10).await[0].is_err());
    assert!(read_all(&reader, 0..10).await[0].is_err(), "within the pause nothing is dialled");
    cluster.network.heal(&cluster.bookies[0].address);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_holds(&reader, 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_replica_is_passed_over() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 30).await;
    for bookie in &cluster.bookies[..2] {
        let mut body = bookie.body(writer.id(), id(7)).unwrap().to_vec();
        *body.last_mut().unwrap() ^= 1;
        bookie.put(writer.id(), id(7), Bytes::from(body));
        // A valid body of another entry is no better.
        bookie.put(writer.id(), id(8), bookie.body(writer.id(), id(9)).unwrap());
    }
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    assert_holds(&reader, 30).await;
    cluster.bookies[2].remove(writer.id(), id(7)).unwrap();
    let read = read_all(&reader, 5..10).await;
    assert_eq!(read.len(), 3);
    assert_eq!(read[2].as_ref().unwrap_err().kind(), ErrorKind::Damaged);
}

#[tokio::test(start_paused = true)]
async fn an_entry_below_the_end_is_never_told_absent() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 10).await;
    for bookie in &cluster.bookies {
        bookie.remove(writer.id(), id(4)).unwrap();
    }
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(read_all(&reader, 4..5).await[0].as_ref().unwrap_err().kind(), ErrorKind::Damaged);
    cluster.bookies[1].behave(Behaviour::RefusingReads(Status::TooManyRequests));
    assert_eq!(read_all(&reader, 4..5).await[0].as_ref().unwrap_err().kind(), ErrorKind::TooManyRequests);
    let beyond = read_all(&reader, 9..12).await;
    assert!(beyond[0].is_ok());
    assert_eq!(beyond[1].as_ref().unwrap_err().kind(), ErrorKind::NoSuchEntry);
}

#[tokio::test(start_paused = true)]
async fn an_open_ledger_is_read_as_far_as_it_is_confirmed() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    let empty = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(empty.last_confirmed().await.unwrap(), None);
    append_all(&writer, 0..10).await;
    append_all(&writer, 10..11).await;
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    // Entry 10 says that 9 is confirmed.
    assert_eq!(reader.last_confirmed().await.unwrap(), Some(id(9)));
    // The writer knows better.
    let opened = cluster.client.open_confirmed(writer.id(), None, writer.last_confirmed()).await.unwrap();
    let Opened::Hot(told) = opened else { panic!("not released") };
    assert_holds(&told, 11).await;
    let read = read_all(&reader, 8..12).await;
    assert_eq!(read.len(), 3);
    assert_eq!(read[2].as_ref().unwrap_err().kind(), ErrorKind::NotConfirmed);
    append_all(&writer, 11..12).await;
    assert_eq!(empty.last_confirmed().await.unwrap(), Some(id(10)), "a reader sees the ledger grow");
    assert!(!cluster.bookies[0].is_fenced(writer.id()));
    writer.close().await.unwrap();
    assert_eq!(reader.last_confirmed().await.unwrap(), Some(id(11)));
    assert_holds(&reader, 12).await;
    assert_eq!(read_all(&reader, 12..13).await[0].as_ref().unwrap_err().kind(), ErrorKind::NoSuchEntry);
}

#[tokio::test(start_paused = true)]
async fn the_confirmed_end_needs_a_covering_set() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..3).await;
    cluster.network.cut(&cluster.bookies[0].address);
    assert!(cluster.open(&writer, OpenMode::ReadOnly).await.is_ok());
    cluster.network.cut(&cluster.bookies[1].address);
    let failed = cluster.open(&writer, OpenMode::ReadOnly).await.map(|_| ()).unwrap_err();
    assert!(failed.to_string().contains("too few members"), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_refused() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 3).await;
    for mode in [OpenMode::ReadOnly, OpenMode::Recover] {
        let refused = cluster.client.open(writer.id(), mode, Some(&Password::new("wrong"))).await.map(|_| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unauthorized);
    }
    assert!(cluster.client.open(writer.id(), OpenMode::ReadOnly, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_ledger_is_gone_by_proof() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 3).await;
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    cluster.client.delete(writer.id()).await.unwrap();
    cluster.client.delete(writer.id()).await.unwrap();
    let gone = cluster.open(&writer, OpenMode::Recover).await.map(|_| ());
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::NoSuchLedger);
    for bookie in &cluster.bookies {
        bookie.remove(writer.id(), id(1)).unwrap();
    }
    let read = read_all(&reader, 0..3).await;
    assert_eq!(read[1].as_ref().unwrap_err().kind(), ErrorKind::NoSuchLedger);
}

#[tokio::test(start_paused = true)]
async fn a_released_ledger_is_cold_and_never_dialled() {
    let cluster = Cluster::start(3).await;
    let writer = closed(&cluster, 10).await;
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let ledgers = Ledgers::new(Arc::clone(&cluster.store));
    let record = ledgers.get(writer.id()).await.unwrap().unwrap();
    let cold = ColdId::for_ledger(writer.id(), 3, "cold.thermocline", 3181).unwrap();
    let released = record.metadata.released_to(&cold).unwrap();
    ledgers.update(writer.id(), &released, record.version).await.unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::Recover] {
        let opened = cluster.client.open(writer.id(), mode, None).await.unwrap();
        assert!(matches!(opened, Opened::Cold(record) if record.metadata == released));
    }
    // A reader opened before goes on while the bookies have the entries, and then says where they are.
    assert_holds(&reader, 10).await;
    for bookie in &cluster.bookies {
        bookie.remove(writer.id(), id(6)).unwrap();
    }
    let read = read_all(&reader, 0..10).await;
    assert_eq!(read[6].as_ref().unwrap_err().kind(), ErrorKind::Cold);
}

#[tokio::test(start_paused = true)]
async fn a_moved_replica_is_found_through_the_metadata() {
    let cluster = Cluster::start(4).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    append_all(&writer, 0..5).await;
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let old = cluster.member(&writer, 0);
    let place = (0..4)
        .find(|place| !writer.metadata().last_segment().ensemble[0].as_str().contains(&format!("bk{place}")))
        .unwrap();
    for entry in 0..5 {
        cluster.bookies[place].put(writer.id(), id(entry), old.remove(writer.id(), id(entry)).unwrap());
    }
    let ledgers = Ledgers::new(Arc::clone(&cluster.store));
    let record = ledgers.get(writer.id()).await.unwrap().unwrap();
    let bookie = BookieId::new(&format!("bk{place}:3181")).unwrap();
    let moved = ledger::LedgerMetadata::open(
        record.metadata.quorums(),
        vec![bookie],
        DigestType::Crc32c,
        Password::new("secret"),
    );
    let length = (0..5).map(|entry| payload(entry).len() as u64).sum();
    let moved = moved.unwrap().closed(Some(id(4)), length).unwrap();
    ledgers.update(writer.id(), &moved, record.version).await.unwrap();
    assert_holds(&reader, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_not_taken_for_the_next() {
    let cluster = Cluster::start(1).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    append_all(&writer, 0..2).await;
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let good = cluster.bookies[0].remove(writer.id(), id(0)).unwrap();
    cluster.bookies[0].behave(Behaviour::Holding);
    // Served as "no entry", answered only after the deadline.
    let read = read_all(&reader, 0..1).await;
    assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    cluster.bookies[0].put(writer.id(), id(0), good);
    let mut second = Box::pin(reader.read(id(0)..id(1)));
    let waiting = tokio::time::timeout(Duration::from_secs(1), second.next()).await;
    assert!(waiting.is_err());
    cluster.bookies[0].behave(Behaviour::Normal);
    assert_eq!(second.next().await.unwrap().unwrap().entry.payload, payload(0));
}

#[tokio::test(start_paused = true)]
async fn large_entries_keep_the_window_within_its_bytes() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    for _ in 0..40 {
        writer.append(Bytes::from(vec![9; 1024 * 1024])).await.unwrap().await.unwrap();
    }
    writer.close().await.unwrap();
    let before = cluster.budget.peak_bytes();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let mut stream = Box::pin(reader.read(id(0)..id(40)));
    let mut count = 0;
    while let Some(entry) = stream.next().await {
        entry.unwrap();
        count += 1;
        assert!(cluster.budget.used_bytes() <= 4 * 1024 * 1024, "{}", cluster.budget.used_bytes());
    }
    assert_eq!(count, 40);
    assert!(cluster.budget.peak_bytes() <= before.max(4 * 1024 * 1024));
    assert_eq!(cluster.budget.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn large_entries_behind_small_ones_are_dropped_and_asked_for_again() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..2000).await;
    for _ in 0..30 {
        writer.append(Bytes::from(vec![9; 1024 * 1024])).await.unwrap().await.unwrap();
    }
    append_all(&writer, 2030..2100).await;
    // Open: nothing tells the reader the mean size.
    let opened = cluster.client.open_confirmed(writer.id(), None, writer.last_confirmed()).await.unwrap();
    let Opened::Hot(reader) = opened else { panic!("not released") };
    let mut stream = Box::pin(reader.read(id(0)..id(2100)));
    let mut next = 0;
    while let Some(read) = stream.next().await {
        assert_eq!(read.unwrap().entry.header.entry, id(next));
        assert!(cluster.budget.used_bytes() <= 4 * 1024 * 1024, "{}", cluster.budget.used_bytes());
        next += 1;
    }
    assert_eq!(next, 2100);
    drop(stream);
    // Reads that lost their place are still answered, and their charge ends with that.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.budget.used_bytes(), 0);
    let reads: u64 = cluster.bookies.iter().map(FakeBookie::reads).sum();
    assert!((2100..4000).contains(&reads), "{reads} reads for 2100 entries");
}

#[tokio::test(start_paused = true)]
async fn streams_that_nobody_polls_do_not_stop_others() {
    let cluster = Cluster::start_on(3, Arc::new(MemoryStore::new()), 32 * 1024 * 1024).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    for _ in 0..20 {
        writer.append(Bytes::from(vec![9; 1024 * 1024])).await.unwrap().await.unwrap();
    }
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = Box::pin(reader.read(id(0)..id(20)));
        stream.next().await.unwrap().unwrap();
        idle.push(stream);
    }
    let read = read_all(&reader, 0..20).await;
    assert_eq!(read.len(), 20);
    assert!(read.iter().all(Result::is_ok));
    // However many streams rest, what they hold stays within the read budget and leaves room for the head of the next.
    for _ in 0..20 {
        let mut stream = Box::pin(reader.read(id(0)..id(20)));
        stream.next().await.unwrap().unwrap();
        idle.push(stream);
    }
    assert!(cluster.budget.used_bytes() <= 16 * 1024 * 1024, "{}", cluster.budget.used_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_bookie_that_closes_before_it_answers_is_not_connected_to_for_every_request() {
    let cluster = Cluster::start(1).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    append_all(&writer, 0..3).await;
    writer.close().await.unwrap();
    // As one does that refuses the client's certificate under TLS 1.3: the connection is made, and then ends.
    cluster.bookies[0].behave(Behaviour::Closing);
    let before = cluster.bookies[0].connections();
    let client = cluster.another_client();
    let opened = client.open(writer.id(), OpenMode::ReadOnly, Some(&Password::new("secret"))).await.unwrap();
    let Opened::Hot(reader) = opened else { panic!("not released") };
    let (began, mut asked) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(4) {
        read_all(&reader, 0..1).await[0].as_ref().unwrap_err();
        tokio::time::sleep(Duration::from_millis(5)).await;
        asked += 1;
    }
    let connections = cluster.bookies[0].connections() - before;
    assert!(connections < 12 && asked > connections, "{connections} connections for {asked} reads");
    cluster.bookies[0].behave(Behaviour::Normal);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(read_all(&reader, 0..3).await.len(), 3);
}
