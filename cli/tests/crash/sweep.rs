//! Reads everything back by every path and compares it with what was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cold::{ColdStore, ObjectReader};
use ledger::ColdRecord;
use metadata::{Attempts, Catalog, Cluster, Ledgers, MetadataStore};
use proto::v1::{Entry, Ledger, LedgerState, LedgerTier, Tier};
use sha2::{Digest as _, Sha256};
use tonic::Code;

use crate::acks::{AckLog, Promises};
use crate::calls::Calls;
use crate::counts;
use crate::wire::Wire;
use crate::wire::ledger_id;

const PAGE: usize = 256;

/// Entries `from..to` of a ledger as a reader got them: all of them, in order, the bytes that were written.
pub fn check_entries(path: &str, log: &AckLog, ledger: u64, from: u64, to: u64, entries: &[Entry]) {
    compare(path, log, ledger, from, to, entries);
    counts::add(format!("entries read back, {path}"), entries.len() as u64);
}

/// The comparison alone.
pub fn compare(path: &str, log: &AckLog, ledger: u64, from: u64, to: u64, entries: &[Entry]) {
    assert_eq!(entries.len() as u64, to - from, "{path}: ledger {ledger} {from}..{to}");
    for (entry, place) in entries.iter().zip(from..) {
        assert_eq!(entry.entry_id, place, "{path}: ledger {ledger}");
        assert!(
            entry.payload == log.payload(ledger, place),
            "{path}: ledger {ledger} entry {place}: other bytes than written"
        );
    }
}

/// Reads everything through a gateway and from the bookies. Ledgers that are open are closed first, whoever wrote them.
pub async fn through(gateways: &mut [Calls], bookies: &BTreeMap<String, String>, log: &AckLog) {
    for (ledger, promises) in log.ledgers() {
        let Some(seen) = settle_end(&mut gateways[0], log, ledger, &promises).await else { continue };
        let end = seen.last_entry_id.map_or(0, |last| last + 1);
        check_promised(log, ledger, &promises, end);
        for gateway in gateways.iter_mut() {
            read_tiers(gateway, log, ledger, end, seen.tier()).await;
        }
        if seen.tier() != LedgerTier::Released {
            read_bookies(bookies, log, &seen, end, &mut gateways[0]).await;
        }
    }
}

/// The ledger's final state; `None` when its deletion was asked for.
async fn settle_end(gateway: &mut Calls, log: &AckLog, ledger: u64, promises: &Promises) -> Option<Ledger> {
    let seen = match gateway.get(ledger).await {
        Ok(seen) => seen,
        Err(status) if promises.deleted && status.code() == Code::NotFound => return None,
        Err(status) => panic!("ledger {ledger} is not described: {status}"),
    };
    if promises.deleted {
        return None;
    }
    let seen = if seen.state() == LedgerState::Closed {
        seen
    } else {
        gateway.close(ledger).await.unwrap_or_else(|status| panic!("ledger {ledger} is not closed: {status}"))
    };
    log.closed(ledger, seen.last_entry_id, seen.length);
    if let Some(cold) = &seen.cold {
        log.settled(ledger, &cold.object_key);
    }
    let confirmed = gateway.last_confirmed(ledger).await.unwrap();
    assert_eq!((confirmed.entry_id, confirmed.closed), (seen.last_entry_id, true), "ledger {ledger}");
    Some(seen)
}

/// The generator of payloads and the digests in the log must agree, or the sweep compares with nothing.
fn check_promised(log: &AckLog, ledger: u64, promises: &Promises, end: u64) {
    assert!(end >= promises.acked.len() as u64, "ledger {ledger} ends at {end}, acknowledged {}", promises.acked.len());
    for (entry, (digest, bytes)) in (0..).zip(&promises.acked) {
        let payload = log.payload(ledger, entry);
        assert_eq!(
            (<[u8; 32]>::from(Sha256::digest(&payload)), payload.len()),
            (*digest, *bytes),
            "ledger {ledger} entry {entry}"
        );
    }
}

async fn read_tiers(gateway: &mut Calls, log: &AckLog, ledger: u64, end: u64, tier: LedgerTier) {
    let (hot, cold) = match tier {
        LedgerTier::Hot => (true, false),
        LedgerTier::Settled => (true, true),
        LedgerTier::Released => (false, true),
        LedgerTier::Unspecified => panic!("ledger {ledger}: no tier"),
    };
    let paths = [("any tier", Tier::Unspecified, true), ("hot tier", Tier::Hot, hot), ("cold tier", Tier::Cold, cold)];
    for (path, tier, _) in paths.iter().filter(|(_, _, has)| *has) {
        let read = gateway.read(ledger, 0, None, *tier).await;
        match read {
            Ok(entries) => check_entries(path, log, ledger, 0, end, &entries),
            // It may be released while it is read.
            Err(status) if *tier == Tier::Hot => {
                let now = gateway.get(ledger).await.unwrap().tier();
                assert_eq!(now, LedgerTier::Released, "ledger {ledger} from the {path}: {status}");
            }
            Err(status) => panic!("ledger {ledger} from the {path}: {status}"),
        }
    }
}

/// Asks every bookie for every entry: what comes is what was written, and enough of them have each one.
async fn read_bookies(bookies: &BTreeMap<String, String>, log: &AckLog, seen: &Ledger, end: u64, gateway: &mut Calls) {
    let ledger = seen.ledger_id;
    let mut copies = vec![0; end as usize];
    for (id, address) in bookies {
        let mut wire = Wire::connect(address).await.unwrap_or_else(|error| panic!("{id} at {address}: {error}"));
        let answers = wire.read_all(ledger, end).await.unwrap_or_else(|error| panic!("{id} at {address}: {error}"));
        for (entry, answer) in answers.iter().enumerate() {
            if let Ok(payload) = answer {
                assert!(
                    *payload == log.payload(ledger, entry as u64),
                    "{id}: ledger {ledger} entry {entry}: other bytes"
                );
                copies[entry] += 1;
                counts::add("entries read back, bookies", 1);
            }
        }
    }
    if let Some(few) = copies.iter().position(|copies| *copies < seen.ack_quorum) {
        let now = gateway.get(ledger).await.unwrap().tier();
        assert_eq!(now, LedgerTier::Released, "ledger {ledger} entry {few}: {} copies on bookies", copies[few]);
    }
}

/// Checks the records themselves: one object named per settled ledger, by record and catalog alike, whole, and condemned by no
/// abandoned attempt; its rows are what was written.
///
/// Gives the keys of the objects named, by ledger.
pub async fn records(store: Arc<dyn MetadataStore>, cold: &ColdStore, log: &AckLog) -> BTreeMap<u64, String> {
    let instance = Cluster::open(store.as_ref()).await.unwrap().expect("the cluster has an identity");
    let (ledgers, catalog) = (Ledgers::new(store.clone()), Catalog::new(store.clone()));
    let promised = log.ledgers();
    let mut after = None;
    let mut settled = Vec::new();
    loop {
        let page = ledgers.list(after, PAGE).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        for (id, record) in page {
            let Some(promises) = promised.get(&id.get()) else { continue };
            let end = record.metadata.last_entry().map_or(0, |last| last.get() + 1);
            if record.metadata.is_closed() {
                assert!(end >= promises.least_end(), "ledger {id}: its record ends too early");
            }
            let Some(named) = ColdRecord::from_metadata(&record.metadata).unwrap() else {
                assert!(promises.object.is_none(), "ledger {id} was settled and its record names no object");
                continue;
            };
            let key = named.object_key(instance.as_str(), id);
            log.settled(id.get(), &key);
            settled.push((id, end, key, named));
        }
    }
    // After the records: offloaders may be at work, and what a record names must stand in the catalog from then on.
    let mut catalogued = BTreeMap::new();
    let mut after = None;
    loop {
        let page = catalog.list(after, PAGE).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.ledger, last.uuid));
        for entry in page {
            let id = entry.ledger;
            let second = catalogued.insert(id, entry.clone());
            assert!(second.is_none(), "ledger {id}: the catalog names two objects: {second:?} and {entry:?}");
        }
    }
    let (attempts, mut after, mut condemned) = (Attempts::new(store.clone()), None, BTreeSet::new());
    loop {
        let page = attempts.list_abandoned(after, PAGE).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.attempt.uuid);
        condemned.extend(page.into_iter().map(|record| record.attempt.key));
    }
    let mut named_objects = BTreeMap::new();
    for (id, end, key, named) in settled {
        let entry = catalogued.get(&id).unwrap_or_else(|| panic!("ledger {id}: the catalog does not have {key}"));
        assert_eq!((&entry.key, entry.object_bytes), (&key, named.object_bytes), "ledger {id}");
        assert!(!condemned.contains(&key), "ledger {id} names an object that an abandoned attempt condemns");
        let reader = ObjectReader::open(cold, instance.as_str(), id, &named).await;
        let reader = reader.unwrap_or_else(|error| panic!("ledger {id}: object {key}: {error}"));
        read_object(&reader, log, id.get(), end).await;
        named_objects.insert(id.get(), key);
    }
    counts::add("settled ledgers checked", named_objects.len() as u64);
    let distinct: BTreeSet<&String> = named_objects.values().collect();
    assert_eq!(distinct.len(), named_objects.len(), "two ledgers name one object: {named_objects:?}");
    named_objects
}

/// Every row of an object, counted: as many as the ledger's record says it has entries.
async fn read_object(reader: &ObjectReader, log: &AckLog, ledger: u64, end: u64) {
    let mut next = 0;
    for group in 0..reader.row_groups().len() {
        let group = reader.read_group(group).await.unwrap();
        for place in 0..group.len() {
            let row = group.row(place).unwrap();
            let entry = row.to_entry().unwrap_or_else(|| panic!("ledger {ledger} row {place}: no entry"));
            assert_eq!((entry.header.ledger, entry.header.entry.get()), (ledger_id(ledger), next));
            assert!(
                entry.payload == log.payload(ledger, next),
                "ledger {ledger} entry {next}: its row has other bytes"
            );
            next += 1;
        }
    }
    assert_eq!((next, reader.entries()), (end, end), "ledger {ledger}: rows read, entries that its object declares");
    counts::add("entries read back, objects", next);
}
