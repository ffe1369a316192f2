//! The faults of a run, drawn from its seed.

use std::time::Duration;

use common::rng::Rng;
use tokio::time::Instant;

use crate::actors::CLIENTS;
use crate::cluster::Cluster;
use crate::judge;
use crate::net::Link;
use crate::world::World;

/// What the faults may do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At most one bookie is away at a time; what is confirmed must be readable all the time.
    OneAway,
    /// Any number may be away, and the power may fail for all at once; nothing that was acknowledged may be lost.
    ManyAway,
}

/// How a fault ends.
enum Undo {
    Restart(usize),
    /// The link of a bookie.
    Heal(usize),
    /// The link of a client to a bookie.
    Join(&'static str, usize),
    /// The way of a bookie to metadata.
    Metadata(usize),
    /// A disk that fails is replaced, with what it kept.
    Disk(usize),
}

/// Does faults, one after the other, and keeps track of how they end.
pub struct Nemesis<'a> {
    world: World,
    cluster: &'a mut Cluster,
    schedule: Schedule,
    rng: Rng,
    undos: Vec<(Instant, Undo)>,
}

impl<'a> Nemesis<'a> {
    pub fn new(world: &World, cluster: &'a mut Cluster, schedule: Schedule) -> Self {
        Self { world: world.clone(), cluster, schedule, rng: world.rng.fork(), undos: Vec::new() }
    }

    /// Does faults for `span`, then ends them all; bookies are left down or starting.
    pub async fn run(mut self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            let next = Instant::now() + self.millis(20..1_000);
            while let Some(at) = self.undos.iter().position(|(due, _)| *due <= next) {
                tokio::time::sleep_until(self.undos[at].0).await;
                let (_, undo) = self.undos.remove(at);
                self.undo(undo);
            }
            tokio::time::sleep_until(next).await;
            self.fault().await;
        }
        for (_, undo) in std::mem::take(&mut self.undos) {
            self.undo(undo);
        }
    }

    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.rng.below(range.end - range.start))
    }

    fn later(&mut self, range: std::ops::Range<u64>, undo: Undo) {
        let due = Instant::now() + self.millis(range);
        self.undos.push((due, undo));
        self.undos.sort_by_key(|(due, _)| *due);
    }

    fn is_separated(&self, number: usize) -> bool {
        let separated =
            |undo: &Undo| matches!(undo, Undo::Heal(at) | Undo::Metadata(at) | Undo::Disk(at) if *at == number);
        self.undos.iter().any(|(_, undo)| separated(undo))
    }

    /// A bookie that something may be done to now.
    fn victim(&self) -> Option<usize> {
        let count = self.cluster.count();
        let number = self.rng.below(count as u64) as usize;
        let is_away = |other: usize| self.cluster.is_away(other) || self.is_separated(other);
        let is_alone = (0..count).all(|other| other == number || !is_away(other));
        let allowed = self.schedule == Schedule::ManyAway || is_alone;
        (allowed && !self.cluster.is_down(number)).then_some(number)
    }

    async fn fault(&mut self) {
        self.world.history.count(|counts| counts.faults += 1);
        match self.rng.below(13) {
            0..=4 => self.crash().await,
            5 => self.stop().await,
            6 | 7 => self.separate(),
            8..=10 => self.part(),
            11 => self.cut_metadata(),
            _ => self.break_disk(),
        }
    }

    async fn crash(&mut self) {
        if self.schedule == Schedule::ManyAway && self.rng.below(5) == 0 {
            self.world.trace.note("the power fails");
            for number in 0..self.cluster.count() {
                if !self.cluster.is_down(number) {
                    self.power_off(number);
                }
            }
            return;
        }
        let Some(number) = self.victim() else { return };
        self.power_off(number);
        if self.schedule == Schedule::OneAway && self.rng.below(3) == 0 {
            self.world.pause(&self.rng, 0..500).await;
            judge::audit(&self.world, &self.rng).await;
        }
    }

    fn power_off(&mut self, number: usize) {
        self.world.history.count(|counts| counts.crashes += 1);
        self.cluster.crash(number);
        // The new process is healthy whatever was done to the old one.
        let of_the_process =
            |undo: &Undo| matches!(undo, Undo::Heal(at) | Undo::Metadata(at) | Undo::Disk(at) if *at == number);
        self.undos.retain(|(_, undo)| !of_the_process(undo));
        self.later(20..4_000, Undo::Restart(number));
    }

    async fn stop(&mut self) {
        // One that something is done to may wait for what only the end of that brings.
        let is_well = |number: &usize| !self.cluster.is_away(*number) && !self.is_separated(*number);
        if let Some(number) = self.victim().filter(is_well) {
            self.cluster.stop(number).await;
            self.later(20..2_000, Undo::Restart(number));
        }
    }

    /// Cuts or freezes a bookie.
    fn separate(&mut self) {
        let Some(number) = self.victim().filter(|number| !self.is_separated(*number)) else { return };
        let address = self.cluster.address(number).to_owned();
        if self.rng.below(2) == 0 {
            self.world.trace.note(format_args!("{address} is cut off"));
            self.world.net.memory.cut(&address);
        } else {
            self.world.trace.note(format_args!("{address} freezes"));
            self.world.net.memory.freeze(&address);
        }
        self.later(20..5_000, Undo::Heal(number));
    }

    /// Cuts or stalls the way of one client to one bookie.
    fn part(&mut self) {
        let client = CLIENTS[self.rng.below(CLIENTS.len() as u64) as usize];
        let number = self.rng.below(self.cluster.count() as u64) as usize;
        let link = if self.rng.below(2) == 0 { Link::Cut } else { Link::Stalled };
        self.world.trace.note(format_args!("{client} to bookie-{number}: {link:?}"));
        self.world.net.set(client, self.cluster.address(number), link);
        self.later(20..4_000, Undo::Join(client, number));
    }

    fn cut_metadata(&mut self) {
        let Some(number) = self.victim().filter(|number| !self.is_separated(*number)) else { return };
        let Some(store) = self.cluster.store(number) else { return };
        self.world.trace.note(format_args!("bookie-{number} loses metadata"));
        store.set_reachable(false);
        self.later(100..6_000, Undo::Metadata(number));
    }

    /// Makes every sync of a bookie fail; what fails stays so until the process is gone.
    fn break_disk(&mut self) {
        let is_well = |number: &usize| !self.cluster.is_away(*number) && !self.is_separated(*number);
        let Some(number) = self.victim().filter(is_well) else { return };
        self.world.trace.note(format_args!("the disk of bookie-{number} fails"));
        self.cluster.break_disk(number);
        self.later(100..4_000, Undo::Disk(number));
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Restart(number) => self.cluster.restart(number),
            Undo::Heal(number) => {
                let address = self.cluster.address(number);
                self.world.trace.note(format_args!("{address} is back"));
                self.world.net.memory.heal(address);
            }
            Undo::Disk(number) => self.power_off(number),
            Undo::Join(client, number) => {
                self.world.trace.note(format_args!("{client} to bookie-{number}: up"));
                self.world.net.set(client, self.cluster.address(number), Link::Up);
            }
            Undo::Metadata(number) => {
                self.world.trace.note(format_args!("bookie-{number} has metadata again"));
                if let Some(store) = self.cluster.store(number) {
                    store.set_reachable(true);
                }
            }
        }
    }
}
