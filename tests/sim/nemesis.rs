//! The faults of a run, drawn from its seed. It acts between two steps of the simulation, when no host runs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cold::Fault;
use common::rng::Rng;
use turmoil::Sim;

use crate::actors::{READERS, RECOVERERS, WRITERS};
use crate::bookies::STOP_LIMIT;
use crate::judge::{JUDGE, Order, Orders};
use crate::store::METADATA;
use crate::tiering::{GATEWAY, OFFLOADER};
use crate::world::{BOOKIES, World};

/// What the faults may do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At most one bookie is away at a time; what is confirmed must be readable all the time.
    OneAway,
    /// Any number may be away, and the power may fail for all at once; nothing that was acknowledged may be lost.
    ManyAway,
}

/// Every host but the bookies.
pub fn others() -> impl Iterator<Item = &'static str> {
    [METADATA, JUDGE, GATEWAY, OFFLOADER].into_iter().chain(users())
}

/// Hosts whose processes come and go, and mean nothing to those whom they serve.
fn users() -> impl Iterator<Item = &'static str> {
    WRITERS.into_iter().chain(RECOVERERS).chain(READERS)
}

/// Cuts the power of a host: its tasks vanish, what its disk has not synced goes, and no peer hears a word of it. The links are cut
/// first, because a runtime drops its tasks, and with them their connections, in an order that no seed decides.
/// A link to a peer that is `held` by another fault stays cut.
pub fn crash(sim: &mut Sim<'_>, world: &World, host: &str, held: impl Fn(&str) -> bool) {
    let bookies = world.nodes.iter().map(|node| node.name.as_str());
    let others: Vec<&str> = others().collect();
    let peers: Vec<&str> = others.into_iter().chain(bookies).filter(|peer| *peer != host).collect();
    peers.iter().for_each(|peer| sim.partition(host, *peer));
    sim.crash(host);
    peers.iter().filter(|peer| !held(peer)).for_each(|peer| sim.release(host, *peer));
}

/// How a fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    /// A bookie that is down.
    Restart(usize),
    /// Another host that is down.
    Bounce(&'static str),
    /// All links of a bookie.
    Heal(usize),
    /// The link of another host to a bookie.
    Join(&'static str, usize),
    /// The way of a bookie to metadata.
    Metadata(usize),
    /// A disk that fails is replaced, with what it kept.
    Disk(usize),
}

impl Undo {
    /// Whether it ends with the process of this bookie.
    fn is_of_process(self, number: usize) -> bool {
        matches!(self, Self::Heal(at) | Self::Metadata(at) | Self::Disk(at) if at == number)
    }

    /// Whether the link between these two is still cut or held up by what it ends.
    fn holds(self, world: &World, one: &str, other: &str) -> bool {
        let is = |host: &str, number: usize| world.nodes[number].name == host;
        let joins = |peer: &str, number| (one == peer && is(other, number)) || (other == peer && is(one, number));
        match self {
            Self::Heal(number) => is(one, number) || is(other, number),
            Self::Join(host, number) => joins(host, number),
            Self::Metadata(number) => joins(METADATA, number),
            Self::Restart(_) | Self::Bounce(_) | Self::Disk(_) => false,
        }
    }

    fn concerns_gateway(self) -> bool {
        matches!(self, Self::Bounce(GATEWAY) | Self::Join(GATEWAY, _))
    }
}

/// Does faults, one after the other, and keeps track of how they end.
pub struct Nemesis {
    world: World,
    orders: Orders,
    schedule: Schedule,
    rng: Rng,
    now: Duration,
    next: Duration,
    undos: Vec<(Duration, Undo)>,
    /// A bookie that was asked to stop, and until when it must have.
    stopping: Option<(usize, Duration)>,
}

impl Nemesis {
    pub fn new(world: &World, orders: &Orders, schedule: Schedule, now: Duration) -> Self {
        let rng = world.rng.fork();
        let (world, orders) = (world.clone(), orders.clone());
        Self { world, orders, schedule, rng, now, next: now, undos: Vec::new(), stopping: None }
    }

    /// Does what is due now.
    pub fn act(&mut self, sim: &mut Sim<'_>) {
        self.now = sim.elapsed();
        // While the judge looks, or a bookie stops in order, the world stays as it is.
        if !self.orders.are_done() || self.is_stopping(sim) {
            return;
        }
        while let Some((_, undo)) = self.undos.first().filter(|(due, _)| *due <= self.now).copied() {
            self.undos.remove(0);
            self.undo(sim, undo);
        }
        if self.next <= self.now {
            self.next = self.now + self.millis(20..1_000);
            self.fault(sim);
        }
    }

    /// Ends all faults, and starts every host that is down.
    pub fn finish(&mut self, sim: &mut Sim<'_>) {
        if let Some((number, _)) = self.stopping.take() {
            self.power_off(sim, number);
        }
        for (_, undo) in std::mem::take(&mut self.undos) {
            self.undo(sim, undo);
        }
        // The disk that a last undo replaced is down.
        for (_, undo) in std::mem::take(&mut self.undos) {
            self.undo(sim, undo);
        }
    }

    fn is_stopping(&mut self, sim: &mut Sim<'_>) -> bool {
        let Some((number, until)) = self.stopping else { return false };
        let name = &self.world.nodes[number].name;
        if sim.is_host_running(name.as_str()) {
            if self.now > until {
                self.world.history.violation(8, format!("{name} has not stopped within {STOP_LIMIT:?}"));
                self.stopping = None;
                self.power_off(sim, number);
            }
            return true;
        }
        crash(sim, &self.world, name, |peer| self.is_held(name, peer));
        self.world.nodes[number].ended();
        self.stopping = None;
        self.later(20..2_000, Undo::Restart(number));
        false
    }

    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.rng.below(range.end - range.start))
    }

    fn later(&mut self, range: std::ops::Range<u64>, undo: Undo) {
        let due = self.now + self.millis(range);
        self.undos.push((due, undo));
        self.undos.sort_by_key(|(due, _)| *due);
    }

    fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.rng.below(choices.len() as u64) as usize]
    }

    fn is_held(&self, one: &str, other: &str) -> bool {
        self.undos.iter().any(|(_, undo)| undo.holds(&self.world, one, other))
    }

    fn is_separated(&self, number: usize) -> bool {
        self.undos.iter().any(|(_, undo)| undo.is_of_process(number))
    }

    fn is_down(&self, number: usize) -> bool {
        self.undos.iter().any(|(_, undo)| *undo == Undo::Restart(number))
    }

    /// Whether it is down or starting.
    fn is_away(&self, number: usize) -> bool {
        self.is_down(number) || !self.world.nodes[number].serves()
    }

    /// A bookie that something may be done to now.
    fn victim(&self) -> Option<usize> {
        let number = self.rng.below(BOOKIES as u64) as usize;
        let is_whole = |other: usize| !self.is_away(other) && !self.is_separated(other);
        let is_alone = (0..BOOKIES).all(|other| other == number || is_whole(other));
        let allowed = self.schedule == Schedule::ManyAway || is_alone;
        (allowed && !self.is_down(number)).then_some(number)
    }

    /// A victim to which nothing has been done yet.
    fn whole_victim(&self) -> Option<usize> {
        self.victim().filter(|number| !self.is_away(*number) && !self.is_separated(*number))
    }

    fn fault(&mut self, sim: &mut Sim<'_>) {
        self.world.history.count(|counts| counts.faults += 1);
        match self.rng.below(18) {
            0..=4 => self.crash(sim),
            5 => self.stop(),
            6 | 7 => self.separate(sim),
            8 | 9 => self.part(sim),
            10 => self.cut_metadata(sim),
            11 => self.break_disk(),
            12 | 13 => self.kill(sim, OFFLOADER),
            14 => self.kill(sim, GATEWAY),
            15 => {
                let user = self.one_of(&users().collect::<Vec<_>>());
                self.kill(sim, user);
            }
            _ => self.upset_store(),
        }
    }

    fn crash(&mut self, sim: &mut Sim<'_>) {
        if self.schedule == Schedule::ManyAway && self.rng.below(5) == 0 {
            self.world.trace.note("the power fails");
            for number in 0..BOOKIES {
                if !self.is_down(number) {
                    self.power_off(sim, number);
                }
            }
            return;
        }
        let Some(number) = self.victim() else { return };
        self.power_off(sim, number);
        if self.schedule == Schedule::OneAway && self.rng.below(3) == 0 {
            let gateway = self.world.gateway_serves.load(Ordering::Relaxed)
                && !self.undos.iter().any(|(_, undo)| undo.concerns_gateway());
            self.orders.give(Order::Audit { gateway });
        }
    }

    /// Cuts the power of a bookie, in whatever it is doing.
    fn power_off(&mut self, sim: &mut Sim<'_>, number: usize) {
        let node = &self.world.nodes[number];
        self.world.history.count(|counts| counts.crashes += 1);
        self.world.trace.note(format_args!("{} crashes", node.name));
        // The new process is healthy, whatever was done to the old one.
        self.undos.retain(|(_, undo)| !undo.is_of_process(number));
        crash(sim, &self.world, &node.name, |peer| self.is_held(&node.name, peer));
        node.ended();
        self.later(20..4_000, Undo::Restart(number));
    }

    fn with_peers(&self, number: usize, mut what: impl FnMut(&str)) {
        others().for_each(&mut what);
        for node in self.world.nodes.iter().filter(|node| node.name != self.world.nodes[number].name) {
            what(&node.name);
        }
    }

    fn stop(&mut self) {
        // One that something is done to may wait for what only the end of that brings.
        if let Some(number) = self.whole_victim() {
            self.world.nodes[number].stop.send_replace(true);
            self.stopping = Some((number, self.now + STOP_LIMIT * 2));
        }
    }

    /// Kills the process of a host that is no bookie.
    fn kill(&mut self, sim: &mut Sim<'_>, host: &'static str) {
        if self.undos.iter().any(|(_, undo)| *undo == Undo::Bounce(host)) {
            return;
        }
        self.world.trace.note(format_args!("{host} is killed"));
        self.world.history.count(|counts| counts.crashes += 1);
        if host == OFFLOADER {
            let open = std::mem::take(&mut *self.world.attempts());
            self.world.history.count(|counts| counts.attempts_cut += u64::from(!open.is_empty()));
        }
        if host == GATEWAY {
            self.world.gateway_serves.store(false, Ordering::Relaxed);
        }
        crash(sim, &self.world, host, |peer| self.is_held(host, peer));
        self.later(20..2_000, Undo::Bounce(host));
    }

    /// Cuts or freezes a bookie.
    fn separate(&mut self, sim: &mut Sim<'_>) {
        let Some(number) = self.victim().filter(|number| !self.is_separated(*number)) else { return };
        let name = &self.world.nodes[number].name;
        if self.rng.below(2) == 0 {
            self.world.trace.note(format_args!("{name} is cut off"));
            self.with_peers(number, |peer| sim.partition(name.as_str(), peer));
        } else {
            self.world.trace.note(format_args!("{name} freezes"));
            self.with_peers(number, |peer| sim.hold(name.as_str(), peer));
        }
        self.later(20..5_000, Undo::Heal(number));
    }

    /// Cuts or stalls the way of one other host to one bookie.
    fn part(&mut self, sim: &mut Sim<'_>) {
        let hosts: Vec<_> = users().chain([GATEWAY, OFFLOADER]).collect();
        let (host, number) = (self.one_of(&hosts), self.rng.below(BOOKIES as u64) as usize);
        if self.undos.iter().any(|(_, undo)| *undo == Undo::Heal(number)) {
            return;
        }
        let name = &self.world.nodes[number].name;
        if self.rng.below(2) == 0 {
            self.world.trace.note(format_args!("{host} is cut off from {name}"));
            sim.partition(host, name.as_str());
        } else {
            self.world.trace.note(format_args!("{host} is held up on the way to {name}"));
            sim.hold(host, name.as_str());
        }
        self.later(20..4_000, Undo::Join(host, number));
    }

    fn cut_metadata(&mut self, sim: &mut Sim<'_>) {
        let Some(number) = self.victim().filter(|number| !self.is_separated(*number)) else { return };
        let name = &self.world.nodes[number].name;
        self.world.trace.note(format_args!("{name} loses metadata"));
        sim.partition(name.as_str(), METADATA);
        self.later(100..6_000, Undo::Metadata(number));
    }

    /// Makes every sync of a bookie fail; what fails stays so until the process is gone.
    fn break_disk(&mut self) {
        let Some(number) = self.whole_victim() else { return };
        let node = &self.world.nodes[number];
        self.world.trace.note(format_args!("the disk of {} fails", node.name));
        node.disk_fails.store(true, Ordering::Relaxed);
        self.later(100..4_000, Undo::Disk(number));
    }

    /// Makes the next requests to the object store fail, or their answers get lost.
    fn upset_store(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let fault = self.one_of(&[Fault::FailGet, Fault::FailPut, Fault::LosePutReply, Fault::LosePutReply]);
            self.world.trace.note(format_args!("the object store will {fault:?}"));
            self.world.objects.inject(fault);
            self.world.history.count(|counts| counts.object_faults += 1);
        }
    }

    fn undo(&mut self, sim: &mut Sim<'_>, undo: Undo) {
        match undo {
            Undo::Restart(number) => {
                let node = &self.world.nodes[number];
                node.ended();
                sim.bounce(node.name.as_str());
            }
            Undo::Bounce(host) => sim.bounce(host),
            Undo::Heal(number) => {
                let name = &self.world.nodes[number].name;
                self.world.trace.note(format_args!("{name} is back"));
                self.with_peers(number, |peer| sim.release(name.as_str(), peer));
            }
            Undo::Disk(number) => self.power_off(sim, number),
            Undo::Join(host, number) => {
                let name = &self.world.nodes[number].name;
                self.world.trace.note(format_args!("{host} reaches {name} again"));
                sim.release(host, name.as_str());
            }
            Undo::Metadata(number) => {
                let name = &self.world.nodes[number].name;
                self.world.trace.note(format_args!("{name} has metadata again"));
                sim.release(name.as_str(), METADATA);
            }
        }
    }
}
