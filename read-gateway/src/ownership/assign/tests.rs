use proptest::prelude::*;

use super::*;

/// A cluster in which every gateway sees everything, one step at a time.
#[derive(Default)]
struct Cluster {
    live: BTreeSet<String>,
    owners: BTreeMap<u8, String>,
    /// Shards that a living gateway gave up.
    given_up: usize,
}

impl Cluster {
    fn join(&mut self, number: u8) {
        self.live.insert(name(number));
    }

    /// A gateway goes; its leased keys go with it.
    fn leave(&mut self, number: u8) {
        self.live.remove(&name(number));
        self.owners.retain(|_, owner| *owner != name(number));
    }

    fn step(&mut self, me: &str) -> Moves {
        let moves = moves(me, &self.live, &self.owners);
        for shard in &moves.give_up {
            assert_eq!(self.owners.remove(shard).as_deref(), Some(me), "nobody gives up what is another's");
        }
        self.given_up += moves.give_up.len();
        for shard in &moves.claim {
            assert_eq!(self.owners.insert(*shard, me.to_owned()), None, "nobody takes what has an owner");
        }
        moves
    }

    /// Lets all gateways act, in the order that `order` makes, until nobody has anything to do. Returns the rounds it took.
    fn settle(&mut self, order: u64) -> usize {
        for round in 0..10 {
            let mut gateways: Vec<String> = self.live.iter().cloned().collect();
            let places = gateways.len().max(1);
            gateways.rotate_left(usize::try_from(order).unwrap_or_default().wrapping_add(round) % places);
            if order % 2 == 1 {
                gateways.reverse();
            }
            let mut idle = true;
            for gateway in gateways {
                idle &= self.step(&gateway) == Moves::default();
            }
            if idle {
                return round;
            }
        }
        panic!("still moving: {:?}", self.counts());
    }

    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = self.live.iter().map(|gateway| (gateway.clone(), 0)).collect();
        for owner in self.owners.values() {
            *counts.entry(owner.clone()).or_default() += 1;
        }
        counts
    }

    fn assert_fair(&self) {
        let counts = self.counts();
        assert_eq!(counts.values().sum::<usize>(), usize::from(COLD_SHARDS), "every shard has an owner: {counts:?}");
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert!(most - least <= 1, "{counts:?}");
    }
}

fn name(number: u8) -> String {
    format!("gateway-{number}")
}

#[test]
fn the_first_gateway_takes_all_and_gives_the_second_half_of_them() {
    let mut cluster = Cluster::default();
    cluster.join(1);
    assert_eq!(cluster.settle(0), 1);
    cluster.assert_fair();
    cluster.join(2);
    cluster.settle(0);
    cluster.assert_fair();
    assert_eq!(cluster.given_up, 32);
}

#[test]
fn one_that_died_loses_its_shards_and_nobody_else_does() {
    let mut cluster = Cluster::default();
    for number in 1..=3 {
        cluster.join(number);
    }
    cluster.settle(1);
    let before = cluster.owners.clone();
    cluster.leave(2);
    cluster.settle(1);
    cluster.assert_fair();
    assert_eq!(cluster.given_up, 0);
    let kept = before.iter().filter(|(_, owner)| **owner != name(2));
    assert!(kept.clone().count() >= 42 && kept.into_iter().all(|(shard, owner)| cluster.owners[shard] == *owner));
}

#[test]
fn a_shard_whose_owner_is_gone_is_taken_when_its_key_is() {
    let owners: BTreeMap<u8, String> = (0..COLD_SHARDS).map(|shard| (shard, name(u8::from(shard == 5)))).collect();
    let live = BTreeSet::from([name(0)]);
    assert_eq!(moves(&name(0), &live, &owners), Moves::default());
}

#[test]
fn a_gateway_that_does_not_see_itself_keeps_what_it_has() {
    let owners: BTreeMap<u8, String> = (0..COLD_SHARDS).map(|shard| (shard, name(1))).collect();
    assert_eq!(moves(&name(1), &BTreeSet::new(), &owners), Moves::default());
}

#[derive(Debug, Clone)]
enum Event {
    Join(u8),
    Leave(u8),
    /// Stops and comes back under its name.
    Restart(u8),
}

fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let event = prop_oneof![
        3 => (0..12_u8).prop_map(Event::Join),
        2 => (0..12_u8).prop_map(Event::Leave),
        1 => (0..12_u8).prop_map(Event::Restart),
    ];
    prop::collection::vec((event, any::<u64>()), 1..40)
}

proptest! {
    #[test]
    fn whatever_comes_and_goes_the_shares_are_fair_and_only_the_surplus_moves(events in events()) {
        let mut cluster = Cluster::default();
        for (event, order) in events {
            let given_up = cluster.given_up;
            let leaves = matches!(event, Event::Leave(_));
            match event {
                Event::Join(number) => cluster.join(number),
                Event::Leave(number) => cluster.leave(number),
                Event::Restart(number) if cluster.live.contains(&name(number)) => {
                    cluster.leave(number);
                    cluster.settle(order);
                    cluster.join(number);
                }
                Event::Restart(_) => {}
            }
            if cluster.live.is_empty() {
                continue;
            }
            let least = usize::from(COLD_SHARDS) / cluster.live.len();
            cluster.settle(order);
            cluster.assert_fair();
            // What was given up went to one that had none: it is no more than one share. Nothing is given up for one that went.
            let surplus = if leaves { 0 } else { least + 1 };
            prop_assert!(cluster.given_up - given_up <= surplus, "{} given up", cluster.given_up - given_up);
        }
    }
}
