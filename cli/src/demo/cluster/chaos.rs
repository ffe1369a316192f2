//! Kills one process after the other, and starts each again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Story;
use super::load::Tallies;
use super::nodes::Nodes;
use super::proof::Evidence;
use crate::{Fault, output};

/// How long a process stays dead.
const DOWN: Duration = Duration::from_millis(1500);
/// How long the kill of an offloader waits for a moment at which one works.
const WORK_DEADLINE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(250);

/// What was killed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing yet.
    Calm,
    Bookie,
    Gateway,
    Offloader,
    Etcd,
}

impl Phase {
    pub(super) const ALL: [Self; 5] = [Self::Calm, Self::Bookie, Self::Gateway, Self::Offloader, Self::Etcd];
    /// What is killed, in this order.
    const KILLED: [Self; 4] = [Self::Bookie, Self::Gateway, Self::Offloader, Self::Etcd];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Calm => "before",
            Self::Bookie => "bookie",
            Self::Gateway => "gateway",
            Self::Offloader => "offloader",
            Self::Etcd => "etcd",
        }
    }
}

/// Kills of each kind, by the number of [`Phase`].
pub(super) type Kills = [u64; Phase::ALL.len()];

/// Kills one of each kind in each round, spread over `span`; each is started again before the next dies. Returns at the end of
/// `span` at the earliest.
pub(super) async fn run(
    nodes: &mut Nodes,
    story: &Story,
    evidence: &Evidence,
    tallies: &Tallies,
    rounds: u32,
    span: Duration,
) -> Result<Kills, Fault> {
    let mut kills = Kills::default();
    let begun = Instant::now();
    let steps = rounds * Phase::KILLED.len() as u32;
    let mut step = 0;
    for round in 0..rounds {
        for phase in Phase::KILLED {
            step += 1;
            wait_until(nodes, begun + span * step / (steps + 1)).await?;
            tallies.enter(phase);
            kill(nodes, story, evidence, phase, round as usize).await?;
            kills[phase as usize] += 1;
        }
    }
    wait_until(nodes, begun + span).await?;
    Ok(kills)
}

/// Waits, and looks meanwhile whether a process died that nobody killed.
async fn wait_until(nodes: &mut Nodes, then: Instant) -> Result<(), Fault> {
    loop {
        nodes.check()?;
        let now = Instant::now();
        if now >= then {
            return Ok(());
        }
        sleep(LOOK.min(then - now)).await;
    }
}

async fn kill(nodes: &mut Nodes, story: &Story, evidence: &Evidence, phase: Phase, round: usize) -> Result<(), Fault> {
    let begun = Instant::now();
    let name = match phase {
        Phase::Calm => return Ok(()),
        Phase::Etcd => {
            story.tell("kill -9 etcd: no ledger can be created, closed or settled now; open ones go on");
            nodes.etcd.kill();
            sleep(DOWN).await;
            nodes.restart_etcd().await?;
            "etcd".to_owned()
        }
        Phase::Bookie => {
            let index = round % nodes.bookies.len();
            story.tell(&format!("kill -9 bookie-{}: two of three copies are enough", index + 1));
            nodes.bookies[index].kill9().await?;
            sleep(DOWN).await;
            nodes.bookies[index].restart().await?;
            format!("bookie-{}", index + 1)
        }
        Phase::Gateway => {
            let index = round % nodes.gateways.len();
            story
                .tell(&format!("kill -9 gateway-{}: its writers close their ledgers through the other one", index + 1));
            nodes.gateways[index].kill9().await?;
            sleep(DOWN).await;
            nodes.restart_gateway(index).await?;
            format!("gateway-{}", index + 1)
        }
        Phase::Offloader => {
            let index = round % nodes.offloaders.len();
            // In the middle of its work, if there is some; that of the other one is as good a moment as any.
            evidence.wait_for_attempt(WORK_DEADLINE).await;
            story.tell(&format!("kill -9 offloader-{}: the other one takes over what it had begun", index + 1));
            nodes.offloaders[index].kill9().await?;
            sleep(DOWN).await;
            nodes.offloaders[index].restart().await?;
            format!("offloader-{}", index + 1)
        }
    };
    story.tell(&format!("{name} serves again, {} after it was killed", output::duration(begun.elapsed())));
    Ok(())
}
