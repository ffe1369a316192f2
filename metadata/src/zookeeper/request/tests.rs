use super::*;
use crate::zookeeper::names::Names;
use crate::{Key, LedgerLayout};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn places(transaction: &Transaction) -> Vec<Place> {
    let names = Names::new("/l");
    let place = |op: &Op| names.place(op.key(), LedgerLayout::Hierarchical).unwrap();
    transaction.ops().iter().map(place).collect()
}

fn stat(mzxid: i64, version: i32, ephemeral_owner: i64) -> Stat {
    Stat {
        czxid: 1,
        mzxid,
        pzxid: 1,
        ctime: 0,
        mtime: 0,
        version,
        cversion: 0,
        aversion: 0,
        ephemeral_owner,
        data_length: 0,
        num_children: 0,
    }
}

fn present(place: &Place, stat: Stat) -> Seen {
    Seen::Present { path: place.path().to_owned(), stat, bucket_version: 7 }
}

fn absent(place: &Place) -> Seen {
    Seen::Absent { missing: place.path().to_owned() }
}

fn sent(plan: Plan) -> Vec<Step> {
    match plan {
        Plan::Send(steps) => steps,
        Plan::Broken(op) => panic!("operation {op} is broken"),
    }
}

fn create(path: &str, value: &'static str) -> Step {
    Step::Create { path: path.into(), value: Bytes::from_static(value.as_bytes()), ephemeral: false }
}

fn delete(path: &str, version: i32) -> Step {
    Step::Delete { path: path.into(), version }
}

#[test]
fn conditions_are_compared_with_what_was_read() {
    let version = Version::new(5);
    let transaction = Transaction::new().check(key("/a"), Expect::Present).put(key("/b"), "x", Expect::At(version));
    let places = places(&transaction);
    let a = present(&places[0], stat(3, 0, 0));
    assert_eq!(plan(&transaction, &places, &[a.clone(), present(&places[1], stat(6, 0, 0))]), Plan::Broken(1));
    assert_eq!(plan(&transaction, &places, &[a.clone(), absent(&places[1])]), Plan::Broken(1));
    assert_eq!(plan(&transaction, &places, &[absent(&places[0]), absent(&places[1])]), Plan::Broken(0));
    let steps = sent(plan(&transaction, &places, &[a, present(&places[1], stat(5, 9, 0))]));
    let check = |path: &str, version| Step::Check { path: path.to_owned(), version };
    let (bucket_a, bucket_b) = (places[0].bucket().unwrap(), places[1].bucket().unwrap());
    assert!(steps.contains(&check(bucket_a, 7)) && steps.contains(&check(bucket_b, 7)));
    assert!(steps.contains(&check(places[0].path(), 0)));
    let set = Step::Set { path: places[1].path().into(), value: Bytes::from_static(b"x"), version: 9 };
    assert_eq!((steps.len(), steps.last()), (4, Some(&set)));
}

#[test]
fn a_make_changes_its_directory() {
    for lease in [None, Some(LeaseId::new(9))] {
        let transaction = match lease {
            None => Transaction::new().put(key("/a"), "x", Expect::Any),
            Some(lease) => Transaction::new().put_leased(key("/a"), "x", Expect::Any, lease),
        };
        let places = places(&transaction);
        let bump = Step::Set { path: places[0].bucket().unwrap().into(), value: Bytes::new(), version: -1 };
        for seen in [Seen::Unread, absent(&places[0])] {
            let made = Step::Create {
                path: places[0].path().into(),
                value: Bytes::from_static(b"x"),
                ephemeral: lease.is_some(),
            };
            assert_eq!(sent(plan(&transaction, &places, &[seen])), [made, bump.clone()]);
        }
    }
}

#[test]
fn of_two_readings_of_a_directory_the_first_is_asserted() {
    let shares = |name: &String| {
        let bucket = |name: &str| {
            Names::new("/l").place(&key(name), LedgerLayout::Hierarchical).unwrap().bucket().map(str::to_owned)
        };
        bucket(name) == bucket("/a")
    };
    let other = (0..).map(|index| format!("/{index}")).find(shares).unwrap();
    let transaction = Transaction::new().check(key("/a"), Expect::Present).check(key(&other), Expect::Present);
    let places = places(&transaction);
    let seen = |place: &Place, bucket_version| Seen::Present {
        path: place.path().to_owned(),
        stat: stat(3, 0, 0),
        bucket_version,
    };
    for versions in [(7, 8), (8, 7)] {
        let steps = sent(plan(&transaction, &places, &[seen(&places[0], versions.0), seen(&places[1], versions.1)]));
        assert_eq!(steps[0], Step::Check { path: places[0].bucket().unwrap().into(), version: 7 });
        assert_eq!(steps.len(), 3);
    }
}

#[test]
fn a_removal_asserts_what_it_removes() {
    let transaction = Transaction::new().delete(key("/a"), Expect::Any);
    let places = places(&transaction);
    let bucket = places[0].bucket().unwrap();
    let steps = sent(plan(&transaction, &places, &[present(&places[0], stat(3, 4, 0))]));
    let check = Step::Check { path: bucket.into(), version: 7 };
    assert_eq!(steps, [check, delete(places[0].path(), 4)]);
    let steps = sent(plan(&transaction, &places, &[absent(&places[0])]));
    assert_eq!(steps, [create(places[0].path(), ""), delete(places[0].path(), 0)], "absence is asserted, not believed");
}

#[test]
fn another_lease_makes_the_znode_anew() {
    let lease = LeaseId::new(9);
    let transaction = Transaction::new().put_leased(key("/a"), "x", Expect::Any, lease);
    let places = places(&transaction);
    let path = places[0].path();
    let steps = sent(plan(&transaction, &places, &[present(&places[0], stat(3, 4, 9))]));
    assert!(matches!(&steps[1], Step::Set { version: 4, .. }), "the same lease: {steps:?}");
    for owner in [0, 8] {
        let steps = sent(plan(&transaction, &places, &[present(&places[0], stat(3, 4, owner))]));
        let made = Step::Create { path: path.into(), value: Bytes::from_static(b"x"), ephemeral: true };
        assert_eq!(steps[1..3], [delete(path, 4), made]);
        assert!(matches!(&steps[3], Step::Set { version: -1, .. }), "{steps:?}");
    }
}

#[test]
fn a_registration_moves_by_being_made_anew() {
    let transaction =
        Transaction::new().put(key("/ledgers/available/readonly/c1-0.cold.thermocline:3181"), "x", Expect::Any);
    let places = places(&transaction);
    let path = places[0].path();
    let steps = sent(plan(&transaction, &places, &[present(&places[0], stat(3, 4, 0))]));
    assert_eq!(steps[0], delete(path, 4));
    assert!(matches!(&steps[1], Step::Create { ephemeral: false, .. }), "{steps:?}");
    assert_eq!(steps[2], Step::Set { path: path.into(), value: Bytes::from_static(b"x"), version: 0 });
    assert_eq!(steps.len(), 3, "BookKeeper's tree has no directories of ours");
}

#[test]
fn a_ledger_is_made_under_one_spelling_only() {
    let transaction = Transaction::new().put(key("/ledgers/000/0000/0000/0000/L0001"), "x", Expect::Absent);
    let places = places(&transaction);
    let (path, other) = ("/l/00/0000/L0001", "/l/00/0000/0001");
    let steps = sent(plan(&transaction, &places, &[Seen::Unread]));
    let set = Step::Set { path: path.into(), value: Bytes::from_static(b"x"), version: 0 };
    assert_eq!(steps, [create(other, ""), delete(other, 0), create(path, ""), set]);
    let found = Seen::Present { path: other.into(), stat: stat(3, 2, 0), bucket_version: 0 };
    assert_eq!(plan(&transaction, &places, &[found]), Plan::Broken(0));
}

#[test]
fn parents_from_the_top() {
    assert_eq!(parents("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b"]);
    assert_eq!(parents("/a").count(), 0);
}
