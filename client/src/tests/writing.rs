use std::time::Duration;

use ledger::LedgerId;
use metadata::{FaultKind, FaultyStore, layout};
use proto::Status;
use tokio::time::Instant;

use super::fake::Behaviour;
use super::*;
use crate::ErrorKind;

#[tokio::test(start_paused = true)]
async fn entries_are_confirmed_in_order_over_one_connection_a_bookie() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    assert_eq!(writer.last_confirmed(), None);
    append_all(&writer, 0..1000).await;
    assert_eq!(writer.last_confirmed(), Some(id(999)));
    let metadata = writer.close().await.unwrap();
    assert_eq!(metadata.last_entry(), Some(id(999)));
    assert_eq!(writer.close().await.unwrap(), metadata, "closing again says the same");
    let after = writer.append(payload(0)).await.unwrap_err();
    assert_eq!((after.kind(), after.may_have_happened()), (ErrorKind::Closed, false));
    for bookie in &cluster.bookies {
        assert_eq!(bookie.connections(), 1);
    }
    let reader = cluster.open(&writer, OpenMode::Recover).await.unwrap();
    assert_holds(&reader, 1000).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_bookie_does_not_stop_a_writer_with_a_quorum_left() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..10).await;
    cluster.network.cut(&cluster.member(&writer, 1).address);
    append_all(&writer, 10..50).await;
    assert!(cluster.member(&writer, 1).adds() < 50);
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    assert_holds(&reader, 50).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_the_writer_ends_and_can_still_be_closed() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..5).await;
    cluster.member(&writer, 0).behave(Behaviour::RefusingAdds(Status::ReadOnly));
    cluster.member(&writer, 2).behave(Behaviour::RefusingAdds(Status::TooManyRequests));
    let failed = writer.append(payload(5)).await.unwrap().await.unwrap_err();
    // The third member has it.
    assert_eq!((failed.kind(), failed.may_have_happened()), (ErrorKind::Unknown, true));
    let cause = std::error::Error::source(&failed).unwrap().to_string();
    assert!(
        cause.contains("entry 5 has") && cause.contains("ReadOnly") && cause.contains("TooManyRequests"),
        "{cause}"
    );
    let later = writer.append(payload(6)).await.unwrap_err();
    assert_eq!((later.kind(), later.may_have_happened()), (ErrorKind::QuorumUnreachable, false));
    assert_eq!(writer.close().await.unwrap().last_entry(), Some(id(4)));
}

#[tokio::test(start_paused = true)]
async fn an_append_that_reached_nobody_surely_did_not_happen() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 1, 1)).await.unwrap();
    for bookie in &cluster.bookies {
        cluster.network.cut(&bookie.address);
    }
    let failed = writer.append(payload(0)).await.unwrap().await.unwrap_err();
    assert_eq!((failed.kind(), failed.may_have_happened()), (ErrorKind::QuorumUnreachable, false));
    assert!(failed.to_string().contains("refused"), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_bookie_is_waited_for_until_the_deadline_only() {
    let cluster = Cluster::start(2).await;
    let writer = cluster.client.create(options(2, 2, 2)).await.unwrap();
    append_all(&writer, 0..3).await;
    cluster.bookies[1].behave(Behaviour::Silent);
    let begin = Instant::now();
    let failed = writer.append(payload(3)).await.unwrap().await.unwrap_err();
    assert_eq!((failed.kind(), failed.may_have_happened()), (ErrorKind::Unknown, true));
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_secs(7), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_frozen_network_fails_appends_by_their_deadline() {
    let cluster = Cluster::start(1).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    append_all(&writer, 0..3).await;
    cluster.network.freeze(&cluster.bookies[0].address);
    let big = Bytes::from(vec![1; 4 * 1024 * 1024]);
    let first = writer.append(big.clone()).await.unwrap();
    let second = writer.append(big).await.unwrap();
    let begin = Instant::now();
    assert!(first.await.unwrap_err().may_have_happened());
    assert!(second.await.is_err());
    assert!(begin.elapsed() < Duration::from_secs(7));
    // What the connection still holds is charged until the bookie is found to be sick.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(cluster.budget.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_close_is_read_back() {
    for fault in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let faulty = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
        let cluster = Cluster::start_on(3, Arc::clone(&faulty) as Arc<dyn MetadataStore>, BUDGET_BYTES).await;
        let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
        append_all(&writer, 0..3).await;
        faulty.fail_next(fault);
        assert_eq!(writer.close().await.unwrap().last_entry(), Some(id(2)));
        assert_eq!(faulty.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_that_stays_unknown_says_so_and_names_the_ledger() {
    let faulty = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let cluster = Cluster::start_on(3, Arc::clone(&faulty) as Arc<dyn MetadataStore>, BUDGET_BYTES).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..3).await;
    faulty.fail_next(FaultKind::AppliedUnknown);
    // The metadata crate reads back once itself.
    for _ in 0..2 {
        faulty.fail_next(FaultKind::FailRead);
    }
    let error = writer.close().await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Unknown, true));
    assert!(error.to_string().starts_with(&format!("close ledger {}:", writer.id())), "{error}");
    assert_eq!(writer.close().await.unwrap().last_entry(), Some(id(2)));
}

#[tokio::test(start_paused = true)]
async fn a_close_that_could_not_be_written_may_be_tried_again() {
    let faulty = Arc::new(FaultyStore::scripted(Arc::new(MemoryStore::new())));
    let cluster = Cluster::start_on(3, Arc::clone(&faulty) as Arc<dyn MetadataStore>, BUDGET_BYTES).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    append_all(&writer, 0..3).await;
    faulty.fail_next(FaultKind::FailBefore);
    assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::Metadata);
    assert_eq!(writer.append(payload(3)).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(writer.close().await.unwrap().last_entry(), Some(id(2)));
}

#[tokio::test(start_paused = true)]
async fn appends_hold_the_budget_until_they_are_confirmed() {
    let limit = 40_000;
    let cluster = Cluster::start_on(3, Arc::new(MemoryStore::new()), limit).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    for bookie in &cluster.bookies {
        bookie.behave(Behaviour::Holding);
    }
    let mut appends = Vec::new();
    loop {
        // 1,000 bytes of payload cost 1,256; three quarters of the budget are for appends.
        let append = writer.append(Bytes::from(vec![7; 1_000]));
        match tokio::time::timeout(Duration::from_millis(100), append).await {
            Ok(append) => appends.push(append.unwrap()),
            Err(_) => break,
        }
    }
    assert_eq!(appends.len(), 23);
    for bookie in &cluster.bookies {
        bookie.behave(Behaviour::Normal);
    }
    for append in appends {
        append.await.unwrap();
    }
    writer.append(Bytes::from(vec![7; 1_000])).await.unwrap().await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(cluster.budget.used_bytes(), 0);
    assert!(cluster.budget.peak_bytes() <= limit / 4 * 3);
}

#[tokio::test(start_paused = true)]
async fn payloads_that_fit_no_frame_are_refused_at_once() {
    let cluster = Cluster::start(1).await;
    let writer = cluster.client.create(options(1, 1, 1)).await.unwrap();
    let largest = proto::FRAME_BYTES_MAX_DEFAULT - 28 - 32 - 20;
    let refused = writer.append(Bytes::from(vec![0; largest + 1])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    writer.append(Bytes::from(vec![0; largest])).await.unwrap().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_few_bookies_are_counted_in_the_message() {
    let cluster = Cluster::start(2).await;
    let refused = cluster.client.create(options(3, 3, 2)).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotEnoughBookies);
    assert!(refused.to_string().contains("needs 3 writable bookies, there are 2 (2 registered)"), "{refused}");
}

/// Takes the next `count` ids behind `last`, as writers do who choose their own.
async fn take_ids(cluster: &Cluster, last: &LedgerWriter, count: u64) {
    let record = cluster.store.get_quorum(&layout::ledger_key(last.id())).await.unwrap().unwrap();
    for number in 1..=count {
        let id = LedgerId::new(last.id().get() + number).unwrap();
        cluster.store.create(&layout::ledger_key(id), record.value.clone()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_someone_else_has_is_not_the_end() {
    let cluster = Cluster::start(3).await;
    let first = cluster.client.create(options(3, 3, 2)).await.unwrap();
    take_ids(&cluster, &first, 3).await;
    let second = cluster.client.create(options(3, 3, 2)).await.unwrap();
    assert_eq!(second.id().get(), first.id().get() + 4);
    append_all(&second, 0..3).await;
    let taken = LedgerId::new(first.id().get() + 1).unwrap();
    let foreign = cluster.store.get_quorum(&layout::ledger_key(taken)).await.unwrap().unwrap();
    let own = cluster.store.get_quorum(&layout::ledger_key(first.id())).await.unwrap().unwrap();
    assert_eq!(foreign.value, own.value, "another's ledger was not touched");

    take_ids(&cluster, &second, 16).await;
    let refused = cluster.client.create(options(3, 3, 2)).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Metadata);
    assert!(refused.to_string().contains("16 ids in a row were taken"), "{refused}");
    cluster.client.create(options(3, 3, 2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_answers_every_promise() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    for bookie in &cluster.bookies {
        bookie.behave(Behaviour::Holding);
    }
    let append = writer.append(payload(0)).await.unwrap();
    cluster.tasks.stop(Duration::from_secs(1)).await.unwrap();
    assert!(append.await.unwrap_err().may_have_happened());
    assert_eq!(writer.append(payload(1)).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(writer.close().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn ensembles_are_drawn_from_all_bookies() {
    let cluster = Cluster::start(6).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let writer = cluster.client.create(options(3, 2, 2)).await.unwrap();
        let ensemble = &writer.metadata().last_segment().ensemble;
        assert_eq!(ensemble.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        seen.extend(ensemble.iter().cloned());
    }
    assert_eq!(seen.len(), 6);
}

/// Not a benchmark: it shows where the client stands, and that nothing is quadratic.
#[tokio::test]
async fn small_appends_go_fast() {
    let cluster = Cluster::start(3).await;
    let writer = cluster.client.create(options(3, 3, 2)).await.unwrap();
    let entries = 100_000u32;
    let begin = Instant::now();
    let (queue, mut appends) = tokio::sync::mpsc::channel(4096);
    let appending = writer.clone();
    let feed = async move {
        for _ in 0..entries {
            let append = appending.append(Bytes::from_static(&[7; 100])).await.unwrap();
            queue.send(append).await.unwrap();
        }
    };
    let drain = async {
        while let Some(append) = appends.recv().await {
            append.await.unwrap();
        }
    };
    tokio::join!(feed, drain);
    let written = begin.elapsed();
    writer.close().await.unwrap();
    let reader = cluster.open(&writer, OpenMode::ReadOnly).await.unwrap();
    let begin = Instant::now();
    let count =
        reader.read(id(0)..id(u64::from(entries))).filter(|read| std::future::ready(read.is_ok())).count().await;
    let read = begin.elapsed();
    assert_eq!(count, entries as usize);
    let rate = |time: Duration| f64::from(entries) / time.as_secs_f64();
    println!("appends {:.0}/s, reads {:.0}/s of 100 bytes, 3 replicas, one thread", rate(written), rate(read));
    assert!(rate(written) > 2_000.0 && rate(read) > 2_000.0);
}
