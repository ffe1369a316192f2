//! A judge that never convicts proves nothing: here the world is broken on purpose, and it must say so.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ledger::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Password, Quorums};

use crate::disk::Honesty;
use crate::history::{History, Violation};
use crate::nemesis::Schedule;
use crate::run::{Plan, run};
use crate::trace::Trace;

/// Seeds within which a broken disk must be found out.
const SEEDS_MAX: u64 = 50;
/// The invariants of what is stored; the others may break for lesser reasons.
const PROMISES: [u8; 5] = [1, 2, 3, 5, 6];

/// What convicts a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// Something that was promised is lost, or is not what it was.
    BrokenPromise,
    /// A bookie refuses to start because a segment of its journal is missing.
    MissingSegment,
    /// A bookie refuses to start because groups of its journal are missing or torn that later ones show to have been complete.
    MissingGroups,
}

impl Proof {
    /// A bookie that refuses for another reason proves nothing: one that has lost its identity never looks at its journal.
    fn of(violation: &Violation) -> Option<Self> {
        if !violation.text.contains("does not start") {
            return PROMISES.contains(&violation.invariant).then_some(Self::BrokenPromise);
        }
        let says = |text: &str| violation.text.contains(text);
        if says("the segment file is missing") {
            return Some(Self::MissingSegment);
        }
        (says("groups are missing") || says("was once complete")).then_some(Self::MissingGroups)
    }
}

/// Runs seeds with a disk that lies until one of them proves it.
fn find_out(honesty: Honesty) -> (Proof, String) {
    let mut others = BTreeSet::new();
    for seed in 0..SEEDS_MAX {
        let span = Duration::from_secs(10);
        let outcome = run(Plan { schedule: Schedule::ManyAway, honesty, span, ..Plan::of(seed) });
        if let Some((proof, violation)) = outcome.violations.iter().find_map(|it| Some((Proof::of(it)?, it))) {
            let text = format!("{honesty:?}: seed {seed} is convicted by {proof:?}: {violation}");
            println!("{text}");
            return (proof, text);
        }
        others.extend(outcome.violations.iter().map(ToString::to_string));
    }
    panic!("{SEEDS_MAX} seeds of {honesty:?} lost nothing; what else they broke: {others:#?}");
}

/// Without `fdatasync`, acknowledged entries and fences are lost.
#[test]
fn a_disk_without_file_syncs_is_found_out() {
    let (proof, text) = find_out(Honesty::NoFileSync);
    assert!(matches!(proof, Proof::BrokenPromise | Proof::MissingGroups), "{text}");
}

/// Without directory syncs of the journal, whole segments are lost.
#[test]
fn a_disk_without_directory_syncs_is_found_out() {
    let (proof, text) = find_out(Honesty::NoDirSync);
    assert!(matches!(proof, Proof::BrokenPromise | Proof::MissingSegment), "{text}");
}

/// A ledger with three entries, of which two are acknowledged.
fn history() -> (History, LedgerId, LedgerMetadata) {
    let history = History::new(&Trace::new());
    let (ledger, bookies) = (LedgerId::new(7_u64).unwrap(), ["a", "b", "c"].map(|id| BookieId::new(id).unwrap()));
    let quorums = Quorums::new(3, 3, 2).unwrap();
    let metadata =
        LedgerMetadata::open(quorums, bookies.to_vec(), DigestType::Crc32c, Password::new(&b""[..])).unwrap();
    history.created(ledger, &metadata);
    for number in 0..3 {
        history.appends(ledger, Bytes::from(vec![0; 10]));
        history.appended(ledger, entry(number));
    }
    history.acknowledged(ledger, entry(0));
    history.acknowledged(ledger, entry(1));
    assert!(history.violations().is_empty());
    (history, ledger, metadata)
}

fn entry(number: u64) -> EntryId {
    EntryId::new(number).unwrap()
}

/// Does something to the history, and wants these invariants to be broken by it.
fn check(expected: &[u8], what: impl FnOnce(&History, LedgerId, LedgerMetadata)) {
    let (history, ledger, metadata) = history();
    what(&history, ledger, metadata);
    let found: Vec<u8> = history.violations().iter().map(|violation| violation.invariant).collect();
    assert_eq!(found, expected, "{:?}", history.violations());
}

#[test]
fn every_rule_of_the_history_bites() {
    check(&[], |history, ledger, open| history.closed(ledger, &open.closed(Some(entry(2)), 30).unwrap(), "me"));
    // An acknowledged entry lies beyond the end.
    check(&[1], |history, ledger, open| history.closed(ledger, &open.closed(Some(entry(0)), 10).unwrap(), "me"));
    // The end moves; so does its length.
    check(&[2], |history, ledger, open| {
        history.closed(ledger, &open.closed(Some(entry(1)), 20).unwrap(), "me");
        history.closed(ledger, &open.closed(Some(entry(2)), 30).unwrap(), "you");
    });
    check(&[2], |history, ledger, open| history.closed(ledger, &open.closed(Some(entry(1)), 21).unwrap(), "me"));
    // It is not closed at all.
    check(&[2], |history, ledger, open| history.closed(ledger, &open, "me"));
    // Something is confirmed beyond the end, before and after it is known, and something that was never sent.
    check(&[2], |history, ledger, open| {
        history.confirmed(ledger, Some(entry(2)), "me");
        history.closed(ledger, &open.closed(Some(entry(1)), 20).unwrap(), "me");
    });
    check(&[2], |history, ledger, open| {
        history.closed(ledger, &open.closed(Some(entry(1)), 20).unwrap(), "me");
        history.confirmed(ledger, Some(entry(2)), "me");
    });
    check(&[2], |history, ledger, _| history.confirmed(ledger, Some(entry(3)), "me"));
    // The old writer is acknowledged beyond the end.
    check(&[5], |history, ledger, open| {
        history.closed(ledger, &open.closed(Some(entry(1)), 20).unwrap(), "me");
        history.acknowledged(ledger, entry(2));
    });
    // A reader sees something else.
    check(&[6], |history, ledger, _| history.read(ledger, entry(0), &Bytes::from_static(b"other"), "me"));
    // What was surely not written is there, told before and after the end is known.
    check(&[8], |history, ledger, open| {
        history.failed(ledger, entry(2), false);
        history.closed(ledger, &open.closed(Some(entry(2)), 30).unwrap(), "me");
    });
    check(&[8], |history, ledger, open| {
        history.closed(ledger, &open.closed(Some(entry(2)), 30).unwrap(), "me");
        history.failed(ledger, entry(2), false);
    });
    check(&[], |history, ledger, open| {
        history.failed(ledger, entry(2), true);
        history.closed(ledger, &open.closed(Some(entry(2)), 30).unwrap(), "me");
    });
}
