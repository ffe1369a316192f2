use std::sync::Arc;

use bytes::Bytes;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{Digester, EntryId, LedgerId, LedgerMetadata, MasterKey, Password, is_cold};
use metadata::{Bookies, Ledgers};
use proto::ReadTarget;
use tokio::sync::mpsc;

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::geometry::{Geometry, IndexSet};
use crate::lac::{LacAnswer, LacRead, LacStep};
use crate::metrics::Metrics;
use crate::pool::{Lane, Pool};
use crate::read::Problem;
use crate::request::{Answer, Ask, Request, Sink};

/// What all parts of one client share.
pub(crate) struct Core {
    pub(crate) ledgers: Ledgers,
    pub(crate) bookies: Bookies,
    pub(crate) pool: Pool,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) config: ClientConfig,
    pub(crate) tasks: TaskTree,
    pub(crate) metrics: Metrics,
    /// Payloads of appends, until they are confirmed or failed and no connection holds them.
    pub(crate) append_budget: ByteBudget,
    /// What readers have asked for and not yet handed out.
    pub(crate) read_budget: ByteBudget,
}

/// What opens the entries of one ledger.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) digester: Digester,
    pub(crate) master_key: MasterKey,
}

impl Keys {
    /// The keys that a ledger's metadata holds, if `password` is the ledger's or none is given.
    pub(crate) fn of(ledger: LedgerId, metadata: &LedgerMetadata, password: Option<&Password>) -> Result<Self, Error> {
        let (Some(digester), Some(master_key), Some(own)) =
            (metadata.digester(), metadata.master_key(), metadata.password())
        else {
            let message = format!("open ledger {ledger}: its metadata does not say how entries are sealed");
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        if password.is_some_and(|password| !password.ct_eq(own)) {
            let message = format!("open ledger {ledger}: the password is not the ledger's");
            return Err(Error::new(ErrorKind::Unauthorized, message));
        }
        Ok(Self { digester, master_key })
    }

    /// What an answer to a read of the last entry says about the confirmed end.
    pub(crate) fn lac_answer(&self, ledger: LedgerId, answer: &Answer) -> LacAnswer {
        match answer {
            Answer::Body(body) => match self.digester.open(ledger, None, body) {
                Ok(entry) => LacAnswer::Confirmed(entry.header.last_confirmed),
                Err(_) => LacAnswer::Problem(Problem::Damaged),
            },
            answer => answer.to_problem().map_or(LacAnswer::Absent, LacAnswer::Problem),
        }
    }
}

/// The hot members of an ensemble.
pub(crate) fn hot_members(ensemble: &[ledger::BookieId]) -> IndexSet {
    ensemble.iter().enumerate().filter(|(_, bookie)| !is_cold(bookie)).map(|(index, _)| index).collect()
}

/// The error that says a problem of a replica.
pub(crate) fn problem_error(problem: Problem, message: impl Into<String>) -> Error {
    let (kind, what) = match problem {
        Problem::Unauthorized => (ErrorKind::Unauthorized, "the master key was refused"),
        Problem::Damaged => (ErrorKind::Damaged, "a replica holds a damaged body"),
        Problem::TooManyRequests => (ErrorKind::TooManyRequests, "a bookie is over a limit"),
        Problem::TimedOut => (ErrorKind::Timeout, "no answer in time"),
        Problem::Disconnected => (ErrorKind::Unknown, "a bookie cannot be reached"),
        Problem::Unknown => (ErrorKind::Unknown, "a bookie does not know"),
    };
    Error::new(kind, format!("{}: {what}", message.into()))
}

impl Core {
    /// Asks the last ensemble of an open ledger how far it is confirmed. A ledger nobody has written is confirmed to `None`.
    pub(crate) async fn read_last_confirmed(
        self: &Arc<Self>,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        keys: &Keys,
    ) -> Result<Option<EntryId>, Error> {
        let segment = metadata.last_segment();
        let mut round = LacRead::new(Geometry::new(metadata.quorums())?, segment.first_entry);
        let (replies, mut answers) = mpsc::unbounded_channel();
        let deadline = self.clock.now() + self.config.read_timeout.duration();
        for (index, bookie) in segment.ensemble.iter().enumerate() {
            let sink = Sink::read(&replies, index, ReadTarget::Last);
            if is_cold(bookie) {
                sink.answer(Answer::NotSent(crate::request::Loss::connection("a cold id")));
                continue;
            }
            let ask = Ask::Read { ledger, target: ReadTarget::Last, fence: None };
            self.pool.channel(bookie, Lane::Normal).send(Request { ask, deadline, sink });
        }
        drop(replies);
        while let Some(reply) = answers.recv().await {
            let message = || format!("read last confirmed of ledger {ledger}");
            match round.on(reply.index, keys.lac_answer(ledger, &reply.answer)) {
                LacStep::Wait => {}
                LacStep::Covered(last_confirmed) => return Ok(last_confirmed),
                LacStep::Unauthorized => return Err(problem_error(Problem::Unauthorized, message())),
                LacStep::NotCovered(problem) => {
                    let message = format!("{}: too few members of the ensemble answered", message());
                    return Err(problem_error(problem, message));
                }
            }
        }
        Err(Error::new(ErrorKind::Unknown, format!("read last confirmed of ledger {ledger}: no answer")))
    }
}

/// An entry as it was read: checked, with the body it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadEntry {
    /// The entry; its payload is a slice of `body`.
    pub entry: ledger::Entry,
    /// The whole stored body, bit for bit.
    pub body: Bytes,
}
