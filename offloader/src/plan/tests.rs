use std::time::Duration;

use ::config::Span;
use ledger::{BookieId, ColdId, EntryId, LedgerId, Password, Quorums};

use super::*;

fn open(digest_type: DigestType) -> LedgerMetadata {
    let members = ["a:1", "b:1"].map(|id| BookieId::new(id).unwrap()).to_vec();
    LedgerMetadata::open(Quorums::new(2, 2, 2).unwrap(), members, digest_type, Password::empty()).unwrap()
}

fn closed() -> LedgerMetadata {
    open(DigestType::Crc32c).closed(EntryId::new(9), 100).unwrap()
}

fn settled() -> LedgerMetadata {
    let record = ColdRecord {
        store_id: 0,
        object: Default::default(),
        object_bytes: 10,
        object_crc32c: 0,
        footer_offset: 5,
        footer_bytes: 5,
        footer_crc32c: 0,
        entries: 10,
        payload_bytes: 100,
        ledger_digest: None,
        commit_counter: 1,
        pack: None,
        length_differs: None,
    };
    closed().with_cold_record(&record).unwrap()
}

fn released(metadata: &LedgerMetadata) -> LedgerMetadata {
    let ids = ColdId::for_ledger(LedgerId::ZERO, 2, "cold.thermocline", 3181).unwrap();
    metadata.released_to(&ids).unwrap()
}

fn policy() -> OffloaderConfig {
    OffloaderConfig::default()
}

const MINE: Option<AttemptFacts<'static>> = Some(AttemptFacts { owner: "me", held_by_other: false });
const OTHERS: Option<AttemptFacts<'static>> = Some(AttemptFacts { owner: "other", held_by_other: true });

struct Case {
    metadata: LedgerMetadata,
    attempt: Option<AttemptFacts<'static>>,
    /// How long ago the ledger was first seen closed and settled.
    seen_secs: (u64, u64),
    is_requested: bool,
}

fn case(metadata: LedgerMetadata) -> Case {
    Case { metadata, attempt: None, seen_secs: (0, 0), is_requested: false }
}

impl Case {
    fn seen(self, closed: u64, settled: u64) -> Self {
        Self { seen_secs: (closed, settled), ..self }
    }

    fn requested(self) -> Self {
        Self { is_requested: true, ..self }
    }

    fn attempt(self, attempt: Option<AttemptFacts<'static>>) -> Self {
        Self { attempt, ..self }
    }

    /// The plans by policy, on order, and on order with release; waits as seconds from now.
    fn check(&self, by_policy: &Plan, now: &Plan, released_now: &Plan) {
        let base = Instant::now();
        let moment = base + Duration::from_secs(1_000_000);
        let facts = Facts {
            metadata: &self.metadata,
            attempt: self.attempt,
            closed_since: Some(moment - Duration::from_secs(self.seen_secs.0)),
            settled_since: Some(moment - Duration::from_secs(self.seen_secs.1)),
            is_requested: self.is_requested,
            now: moment,
            wall_ms: 0,
        };
        assert_eq!(&decide(&facts, Order::Policy(&policy())), by_policy, "by policy");
        assert_eq!(&decide(&facts, Order::Now { release: false }), now, "on order");
        assert_eq!(&decide(&facts, Order::Now { release: true }), released_now, "on order, with release");
    }

    fn check_same(&self, plan: &Plan) {
        self.check(plan, plan, plan);
    }

    /// As `check`, where the policy waits this long.
    fn check_waits(&self, secs: u64, now: &Plan, released_now: &Plan) {
        let moment = Instant::now() + Duration::from_secs(1_000_000);
        let facts = Facts {
            metadata: &self.metadata,
            attempt: self.attempt,
            closed_since: Some(moment - Duration::from_secs(self.seen_secs.0)),
            settled_since: Some(moment - Duration::from_secs(self.seen_secs.1)),
            is_requested: self.is_requested,
            now: moment,
            wall_ms: 0,
        };
        let due = moment + Duration::from_secs(secs);
        assert_eq!(decide(&facts, Order::Policy(&policy())), Plan::WaitUntil(due), "by policy");
        assert_eq!(&decide(&facts, Order::Now { release: false }), now, "on order");
        assert_eq!(&decide(&facts, Order::Now { release: true }), released_now, "on order, with release");
    }
}

#[test]
fn what_cannot_be_settled_is_left_alone() {
    let empty = open(DigestType::Crc32c).closed(None, 0).unwrap();
    let dummy = open(DigestType::Dummy).closed(EntryId::new(9), 1).unwrap();
    let old = b"BookieMetadataFormatVersion\t1\n1\n1\n9\n0\ta:1\n3\tCLOSED";
    let bad_record = closed().with_custom(ColdRecord::KEY, vec![9]).unwrap();
    let check = |metadata: LedgerMetadata, why| case(metadata).seen(9999, 9999).check_same(&Plan::Nothing(why));
    check(open(DigestType::Crc32c), Why::Open);
    check(open(DigestType::Crc32c).in_recovery().unwrap(), Why::Open);
    check(empty, Why::Empty);
    check(dummy, Why::NoDigest);
    check(LedgerMetadata::decode(old).unwrap(), Why::FormatTooOld);
    check(bad_record, Why::BadColdRecord);
    check(released(&closed()), Why::NoColdRecord);
    check(released(&settled()), Why::Released);
}

#[test]
fn a_closed_ledger_is_settled_when_it_is_due() {
    case(closed()).check_waits(60, &Plan::Settle, &Plan::Settle);
    case(closed()).seen(59, 0).check_waits(1, &Plan::Settle, &Plan::Settle);
    case(closed()).seen(60, 0).check_same(&Plan::Settle);
}

#[test]
fn an_attempt_left_behind_is_taken_over_and_a_living_one_is_not() {
    case(closed()).seen(60, 0).attempt(MINE).check_same(&Plan::Settle);
    case(closed()).seen(60, 0).attempt(OTHERS).check_same(&Plan::HeldByOther("other".to_owned()));
}

#[test]
fn a_settled_ledger_is_released_when_its_time_on_bookies_is_over() {
    const MOST: u64 = 4 * 3600;
    let settled_for = |secs| case(settled()).seen(99_999, secs);
    settled_for(0).check_waits(MOST, &Plan::Nothing(Why::Settled), &Plan::Release);
    settled_for(MOST - 1).check_waits(1, &Plan::Nothing(Why::Settled), &Plan::Release);
    settled_for(MOST).check(&Plan::Release, &Plan::Nothing(Why::Settled), &Plan::Release);
    settled_for(0).requested().check_waits(600, &Plan::Nothing(Why::Settled), &Plan::Release);
    settled_for(599).requested().check_waits(1, &Plan::Nothing(Why::Settled), &Plan::Release);
    settled_for(600).requested().check(&Plan::Release, &Plan::Nothing(Why::Settled), &Plan::Release);
}

#[test]
fn a_request_never_makes_a_ledger_stay_longer_nor_settle_sooner() {
    let config = OffloaderConfig { hot_retention: Span::secs(5), ..policy() };
    let now = Instant::now() + Duration::from_secs(9999);
    for (metadata, secs) in [(settled(), 5), (closed(), 60)] {
        for is_requested in [false, true] {
            let facts = Facts {
                metadata: &metadata,
                attempt: None,
                closed_since: Some(now),
                settled_since: Some(now),
                is_requested,
                now,
                wall_ms: 0,
            };
            let plan = decide(&facts, Order::Policy(&config));
            assert_eq!(plan, Plan::WaitUntil(now + Duration::from_secs(secs)));
        }
    }
}

#[test]
fn an_attempt_beside_a_committed_object_is_abandoned() {
    case(settled()).seen(9999, 9999).attempt(MINE).check_same(&Plan::AbandonAttempt);
    case(released(&settled())).attempt(MINE).check_same(&Plan::AbandonAttempt);
    case(released(&settled())).attempt(OTHERS).check_same(&Plan::Nothing(Why::Released));
}

#[test]
fn a_rehydrated_ledger_is_released_again() {
    let value = released(&settled()).encode();
    let hot = LedgerMetadata::decode(&value).unwrap();
    assert!(hot.is_released());
    case(settled()).seen(99_999, 99_999).check(&Plan::Release, &Plan::Nothing(Why::Settled), &Plan::Release);
}

#[test]
fn what_is_partly_released_waits_for_its_time_by_the_wall_clock() {
    let ids = ColdId::for_ledger(LedgerId::new(7).unwrap(), 2, "cold.thermocline", 3181).unwrap();
    let partly = settled().partly_released_to(&ids, 50_000, |_| true).unwrap();
    let now = Instant::now() + Duration::from_secs(999_999);
    let facts = |wall_ms| Facts {
        metadata: &partly,
        attempt: None,
        closed_since: None,
        settled_since: Some(now - Duration::from_secs(99_000)),
        is_requested: false,
        now,
        wall_ms,
    };
    let release = Order::Now { release: true };
    for wall_ms in [0, 20_000, 49_999] {
        let due = now + Duration::from_millis(50_000 - wall_ms);
        assert_eq!(decide(&facts(wall_ms), Order::Policy(&policy())), Plan::WaitUntil(due));
        assert_eq!(decide(&facts(wall_ms), release), Plan::Nothing(Why::PartlyReleased));
    }
    for order in [release, Order::Policy(&policy())] {
        assert_eq!(decide(&facts(50_000), order), Plan::Release);
    }
}

#[test]
fn cursors_and_schemas_stay_hot_unless_ordered() {
    let custom = |key: &str, value: &'static str| case(closed().with_custom(key, value).unwrap()).seen(9999, 0);
    for ledger in [custom("pulsar/cursor", "c"), custom("component", "schema")] {
        ledger.check(&Plan::Nothing(Why::StaysHot), &Plan::Settle, &Plan::Settle);
    }
    custom("component", "managed-ledger").check_same(&Plan::Settle);
}

#[test]
fn switched_off_means_orders_only() {
    let off = OffloaderConfig { enabled: false, ..policy() };
    for metadata in [closed(), settled()] {
        let facts = Facts {
            metadata: &metadata,
            attempt: None,
            closed_since: None,
            settled_since: None,
            is_requested: false,
            now: Instant::now(),
            wall_ms: 0,
        };
        assert_eq!(decide(&facts, Order::Policy(&off)), Plan::Nothing(Why::Disabled));
    }
}

#[test]
fn an_object_fits_a_changed_record_only_with_the_same_end() {
    let other_end = open(DigestType::Crc32c).closed(EntryId::new(8), 100).unwrap();
    let moved = closed().with_custom("x", "y").unwrap();
    assert!(may_recommit(&closed(), &moved));
    assert!(!may_recommit(&closed(), &other_end));
    assert!(!may_recommit(&closed(), &settled()));
    assert!(!may_recommit(&closed(), &open(DigestType::Crc32c)));
}

#[test]
fn settings_are_checked() {
    assert!(policy().validate().is_ok());
    let refuse = |config: OffloaderConfig, key: &str| {
        let error = config.validate().unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    };
    refuse(OffloaderConfig { ledgers_in_flight: 0, ..policy() }, "ledgers_in_flight");
    refuse(OffloaderConfig { ledgers_in_flight: 4, ..policy() }, "memory_max");
    refuse(OffloaderConfig { cold_domain: "a b".to_owned(), ..policy() }, "cold_domain");
    refuse(OffloaderConfig { cold_port: 0, ..policy() }, "cold_port");
    refuse(OffloaderConfig { scan_interval: ::config::Span::secs(0), ..policy() }, "scan_interval");
}
