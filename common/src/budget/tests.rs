use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;

type Pending = Pin<Box<dyn Future<Output = BytePermit> + Send>>;

fn poll(pending: &mut Pending) -> Option<BytePermit> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

fn ask(budget: &ByteBudget, bytes: u64) -> Pending {
    let budget = budget.clone();
    Box::pin(async move { budget.acquire(bytes).await })
}

#[test]
fn permits_are_counted_and_given_back() {
    let budget = ByteBudget::new("test", 100);
    let one = budget.try_acquire(60).unwrap();
    assert_eq!((budget.used_bytes(), one.bytes(), budget.name()), (60, 60, "test"));
    assert!(budget.try_acquire(41).is_none());
    let two = budget.try_acquire(40).unwrap();
    drop(one);
    assert_eq!(budget.used_bytes(), 40);
    drop(two);
    assert_eq!((budget.used_bytes(), budget.peak_bytes()), (0, 100));
}

#[test]
fn a_request_over_the_limit_is_admitted_alone() {
    let budget = ByteBudget::new("test", 100);
    let small = budget.try_acquire(1).unwrap();
    let mut large = ask(&budget, 1_000_000);
    assert!(poll(&mut large).is_none());
    drop(small);
    let large = poll(&mut large).unwrap();
    assert_eq!((large.bytes(), budget.used_bytes()), (100, 100));
    assert!(budget.try_acquire(1).is_none());
}

#[test]
fn nobody_overtakes() {
    let budget = ByteBudget::new("test", 100);
    let held = budget.try_acquire(90).unwrap();
    let mut first = ask(&budget, 50);
    let mut second = ask(&budget, 5);
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
    assert!(budget.try_acquire(5).is_none(), "10 bytes are free, but two wait");
    assert_eq!(budget.waiting(), 2);
    drop(held);
    let (first, second) = (poll(&mut first).unwrap(), poll(&mut second).unwrap());
    assert_eq!(first.bytes() + second.bytes(), budget.used_bytes());
}

#[test]
fn a_dropped_request_does_not_hold_up_the_next() {
    let budget = ByteBudget::new("test", 100);
    let held = budget.try_acquire(90).unwrap();
    let mut large = ask(&budget, 50);
    let mut small = ask(&budget, 5);
    assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
    drop(large);
    assert!(poll(&mut small).is_some());
    assert_eq!((budget.used_bytes(), budget.peak_bytes()), (90, 95));
    drop(held);
}

#[test]
fn a_request_admitted_but_never_looked_at_gives_back() {
    let budget = ByteBudget::new("test", 10);
    let held = budget.try_acquire(10).unwrap();
    let mut waiting = ask(&budget, 10);
    assert!(poll(&mut waiting).is_none());
    drop(held);
    assert_eq!(budget.used_bytes(), 10, "handed over");
    drop(waiting);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_child_is_charged_to_its_parent() {
    let total = ByteBudget::new("total", 100);
    let (left, right) = (total.child("left", 60), total.child("right", 500));
    assert_eq!(right.limit_bytes(), 100);
    let one = left.try_acquire(60).unwrap();
    assert!(left.try_acquire(1).is_none(), "its own limit");
    let mut two = ask(&right, 50);
    assert!(poll(&mut two).is_none(), "the parent's limit");
    assert_eq!((total.used_bytes(), right.used_bytes()), (60, 50));
    drop(one);
    let two = poll(&mut two).unwrap();
    assert_eq!((total.used_bytes(), left.used_bytes()), (50, 0));
    drop(two);
    assert_eq!((total.used_bytes(), right.used_bytes()), (0, 0));
}

#[test]
fn permits_split_merge_and_shrink() {
    let total = ByteBudget::new("total", 100);
    let part = total.child("part", 100);
    let mut whole = part.try_acquire(80).unwrap();
    let piece = whole.split(30);
    assert_eq!((whole.bytes(), piece.bytes(), total.used_bytes()), (50, 30, 80));
    whole.shrink_to(20);
    whole.shrink_to(70);
    assert_eq!((whole.bytes(), total.used_bytes(), part.used_bytes()), (20, 50, 50));
    whole.merge(piece);
    assert_eq!((whole.bytes(), whole.split(1_000).bytes(), whole.bytes()), (50, 50, 0));
    assert_eq!((total.used_bytes(), part.used_bytes()), (0, 0));
}

#[test]
#[should_panic(expected = "merge permits of one budget only")]
fn permits_of_two_budgets_do_not_merge() {
    let (one, two) = (ByteBudget::new("one", 10), ByteBudget::new("two", 10));
    one.try_acquire(1).unwrap().merge(two.try_acquire(1).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_never_exceed_the_limit() {
    let total = ByteBudget::new("total", 1_000);
    let parts = [total.child("a", 300), total.child("b", 900)];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16_u64 {
        let (total, part) = (total.clone(), parts[usize::try_from(task % 2).unwrap()].clone());
        tasks.spawn(async move {
            for round in 0..200_u64 {
                let permit = part.acquire((task * 37 + round * 101) % 400).await;
                assert!(total.used_bytes() <= 1_000 && part.used_bytes() <= part.limit_bytes());
                tokio::task::yield_now().await;
                drop(permit);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(total.used_bytes() + parts[0].used_bytes() + parts[1].used_bytes(), 0);
    assert!(total.peak_bytes() <= 1_000);
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, u64),
    Try(usize, u64),
    Poll(prop::sample::Index),
    GiveUp(prop::sample::Index),
    Release(prop::sample::Index),
    Split(prop::sample::Index, u64),
    Shrink(prop::sample::Index, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (0..4_usize, 0..150_u64).prop_map(|(budget, bytes)| Step::Ask(budget, bytes)),
        2 => (0..4_usize, 0..150_u64).prop_map(|(budget, bytes)| Step::Try(budget, bytes)),
        4 => index().prop_map(Step::Poll),
        2 => index().prop_map(Step::GiveUp),
        3 => index().prop_map(Step::Release),
        1 => (index(), 0..100_u64).prop_map(|(which, bytes)| Step::Split(which, bytes)),
        1 => (index(), 0..100_u64).prop_map(|(which, bytes)| Step::Shrink(which, bytes)),
    ]
}

proptest! {
    /// Whatever callers do: no budget exceeds its limit, everybody is served in the end, and nothing stays charged.
    #[test]
    fn a_tree_of_budgets_keeps_its_limits(steps in prop::collection::vec(step(), 0..120)) {
        let root = ByteBudget::new("root", 100);
        let inner = root.child("inner", 70);
        let budgets = [root.clone(), inner.clone(), inner.child("leaf", 30), root.child("other", 100)];
        let mut pending: Vec<Pending> = Vec::new();
        let mut held: Vec<BytePermit> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(budget, bytes) => pending.push(ask(&budgets[budget], bytes)),
                Step::Try(budget, bytes) => held.extend(budgets[budget].try_acquire(bytes)),
                Step::Poll(which) if !pending.is_empty() => {
                    let which = which.index(pending.len());
                    if let Some(permit) = poll(&mut pending[which]) {
                        held.push(permit);
                        drop(pending.swap_remove(which));
                    }
                }
                Step::GiveUp(which) if !pending.is_empty() => drop(pending.swap_remove(which.index(pending.len()))),
                Step::Release(which) if !held.is_empty() => drop(held.swap_remove(which.index(held.len()))),
                Step::Split(which, bytes) if !held.is_empty() => {
                    let which = which.index(held.len());
                    let piece = held[which].split(bytes);
                    held.push(piece);
                }
                Step::Shrink(which, bytes) if !held.is_empty() => {
                    let which = which.index(held.len());
                    held[which].shrink_to(bytes);
                }
                _ => {}
            }
            for budget in &budgets {
                prop_assert!(budget.used_bytes() <= budget.limit_bytes());
                prop_assert!(budget.peak_bytes() <= budget.limit_bytes());
            }
            prop_assert!(root.used_bytes() >= held.iter().map(BytePermit::bytes).sum());
        }
        held.clear();
        for _ in 0..=pending.len() {
            pending.retain_mut(|pending| poll(pending).is_none());
        }
        prop_assert!(pending.is_empty(), "{} requests were never served", pending.len());
        for budget in &budgets {
            prop_assert_eq!((budget.used_bytes(), budget.waiting()), (0, 0));
        }
    }
}
