//! Carries out what [`RecoveryMachine`] decides.

use std::sync::Arc;

use ledger::{EntryHeader, LedgerId, LedgerMetadata};
use metadata::LedgerRecord;
use proto::ReadTarget;
use tokio::sync::mpsc;

use crate::close::Written;
use crate::error::{Error, ErrorKind};
use crate::geometry::IndexSet;
use crate::pool::Lane;
use crate::read::Problem;
use crate::recovery::{
    BYTES_IN_FLIGHT_MAX, RecoveryAction, RecoveryEvent, RecoveryFailure, RecoveryMachine, RecoveryRead,
};
use crate::request::{Answer, Ask, Reply, Request, Sink};
use crate::shared::{Core, Keys, problem_error};

/// Takes a ledger from its writer, finds its end and closes it. Returns the metadata of the closed ledger.
///
/// A failure leaves the ledger in recovery; trying again is safe.
pub(crate) async fn recover(
    core: &Arc<Core>,
    ledger: LedgerId,
    record: LedgerRecord,
    keys: Keys,
) -> Result<LedgerMetadata, Error> {
    let began = core.clock.now();
    let recovered = recover_once(core, ledger, record, keys).await;
    core.metrics.recovered(recovered.is_ok(), core.clock.now() - began);
    recovered
}

async fn recover_once(
    core: &Arc<Core>,
    ledger: LedgerId,
    record: LedgerRecord,
    keys: Keys,
) -> Result<LedgerMetadata, Error> {
    // Entries on their way from one replica to the others; charged as a whole, because their sizes show only as they come.
    let acquire = core.append_budget.acquire(BYTES_IN_FLIGHT_MAX);
    let _permit = tokio::time::timeout(core.config.read_timeout.duration(), acquire).await.map_err(|_| {
        Error::new(ErrorKind::TooManyRequests, format!("recover ledger {ledger}: the client's byte budget is used up"))
    })?;
    let (replies, mut answers) = mpsc::unbounded_channel();
    let mut shell = Shell {
        core: Arc::clone(core),
        ledger,
        keys,
        version: record.version,
        machine: RecoveryMachine::new(record.metadata)?,
        replies,
    };
    tracing::info!(ledger_id = %ledger, "recovery begins");
    let mut event = RecoveryEvent::Start;
    loop {
        if let Some(metadata) = shell.step(event).await? {
            tracing::info!(ledger_id = %ledger, last_entry = ?metadata.last_entry(), "recovery is done");
            return Ok(metadata);
        }
        // `replies` lives in the shell, and every request is answered by its deadline.
        let Some(reply) = answers.recv().await else {
            return Err(Error::new(ErrorKind::Unknown, format!("recover ledger {ledger}: no answer")));
        };
        event = shell.event_of(reply);
    }
}

struct Shell {
    core: Arc<Core>,
    ledger: LedgerId,
    keys: Keys,
    version: metadata::Version,
    machine: RecoveryMachine,
    replies: mpsc::UnboundedSender<Reply>,
}

impl Shell {
    /// Gives the machine an event and does what it wants, metadata calls included, until it waits for bookies.
    async fn step(&mut self, event: RecoveryEvent) -> Result<Option<LedgerMetadata>, Error> {
        let mut event = Some(event);
        let mut actions = Vec::new();
        while let Some(now) = event.take() {
            self.machine.on(now, &mut actions);
            for action in actions.drain(..) {
                match action {
                    // The machine asks for one metadata call at a time, and for nothing else beside it.
                    RecoveryAction::WriteMetadata(metadata) => event = Some(self.write(&metadata).await?),
                    RecoveryAction::ReadMetadata => {
                        let found = self.core.read_record(self.ledger).await?;
                        event = Some(RecoveryEvent::MetadataRead(found.map(|record| self.take(record))));
                    }
                    RecoveryAction::FenceAndReadLast { to } => self.read(ReadTarget::Last, to),
                    RecoveryAction::FenceAndRead { entry, to } => self.read(ReadTarget::Entry(entry), to),
                    RecoveryAction::AddAgain { entry, last_confirmed, length, payload, to } => {
                        let header = EntryHeader { ledger: self.ledger, entry, last_confirmed, length };
                        self.add(&header, &payload, to);
                    }
                    RecoveryAction::Done(metadata) => return Ok(Some(*metadata)),
                    RecoveryAction::Failed(failure) => return Err(recovery_error(self.ledger, failure)),
                }
            }
        }
        Ok(None)
    }

    async fn write(&mut self, metadata: &LedgerMetadata) -> Result<RecoveryEvent, Error> {
        Ok(match self.core.write_record(self.ledger, metadata, self.version).await? {
            Written::Done(version) => {
                self.version = version;
                RecoveryEvent::Written
            }
            Written::Conflict(found) => RecoveryEvent::Conflict(found.map(|record| self.take(*record))),
            Written::Unknown => RecoveryEvent::WriteUnknown,
        })
    }

    fn take(&mut self, record: LedgerRecord) -> LedgerMetadata {
        self.version = record.version;
        record.metadata
    }

    fn read(&self, target: ReadTarget, to: IndexSet) {
        let metadata = self.machine.metadata();
        let ensemble = match target {
            ReadTarget::Last => &metadata.last_segment().ensemble,
            ReadTarget::Entry(entry) => metadata.ensemble_of(entry),
        };
        let deadline = self.core.clock.now() + self.core.config.read_timeout.duration();
        for index in to.iter() {
            let ask = Ask::Read { ledger: self.ledger, target, fence: Some(self.keys.master_key) };
            let sink = Sink::read(&self.replies, index, target);
            self.core.pool.channel(&ensemble[index], Lane::Recovery).send(Request { ask, deadline, sink });
        }
    }

    fn add(&self, header: &EntryHeader, payload: &[u8], to: IndexSet) {
        let body = self.keys.digester.seal(header, payload);
        let ensemble = self.machine.metadata().ensemble_of(header.entry);
        let deadline = self.core.clock.now() + self.core.config.add_timeout.duration();
        for index in to.iter() {
            let ask = Ask::Add {
                ledger: self.ledger,
                entry: header.entry,
                master_key: self.keys.master_key,
                body: body.clone(),
                recovery: true,
            };
            let sink = Sink::add(&self.replies, index, header.entry);
            self.core.pool.channel(&ensemble[index], Lane::Recovery).send(Request { ask, deadline, sink });
        }
    }

    fn event_of(&self, reply: Reply) -> RecoveryEvent {
        let Reply { index, is_add, target, answer, .. } = reply;
        match (target, is_add) {
            (ReadTarget::Last, _) => {
                RecoveryEvent::LacAnswered { index, answer: self.keys.lac_answer(self.ledger, &answer) }
            }
            (ReadTarget::Entry(entry), true) => {
                RecoveryEvent::AddAnswered { entry, index, answer: answer.to_add_answer() }
            }
            (ReadTarget::Entry(entry), false) => {
                let answer = match &answer {
                    Answer::Body(body) => match self.keys.digester.open(self.ledger, Some(entry), body) {
                        Ok(opened) => RecoveryRead::Found { payload: opened.payload, length: opened.header.length },
                        Err(_) => RecoveryRead::Problem(Problem::Damaged),
                    },
                    answer => answer.to_problem().map_or(RecoveryRead::Absent, RecoveryRead::Problem),
                };
                RecoveryEvent::ReadAnswered { entry, index, answer }
            }
        }
    }
}

fn recovery_error(ledger: LedgerId, failure: RecoveryFailure) -> Error {
    let message = format!("recover ledger {ledger}");
    match failure {
        RecoveryFailure::NoSuchLedger => Error::new(ErrorKind::NoSuchLedger, format!("{message}: it was deleted")),
        RecoveryFailure::Unauthorized => problem_error(Problem::Unauthorized, message),
        RecoveryFailure::NotCovered(problem) => {
            problem_error(problem, format!("{message}: too few members of the last ensemble could be fenced"))
        }
        RecoveryFailure::EntryUnknown { entry, problem } => {
            problem_error(problem, format!("{message}: cannot tell whether entry {entry} was written"))
        }
        RecoveryFailure::QuorumUnreachable { entry, acked } => {
            let message = format!("{message}: entry {entry} reached {acked} members only and no more can be reached");
            Error::new(ErrorKind::QuorumUnreachable, message)
        }
        RecoveryFailure::Deleted { entry } => {
            let message =
                format!("{message}: a bookie refused entry {entry} as fenced for ever, the ledger is being deleted");
            Error::new(ErrorKind::Fenced, message)
        }
        RecoveryFailure::EndUnreadable { entry, problem: Some(problem) } => {
            problem_error(problem, format!("{message}: cannot read the last confirmed entry {entry}"))
        }
        RecoveryFailure::EndUnreadable { entry, problem: None } => {
            let message = format!("{message}: entry {entry} is confirmed, and every replica denies it");
            Error::new(ErrorKind::Damaged, message)
        }
        RecoveryFailure::Contention => {
            Error::new(ErrorKind::Metadata, format!("{message}: its metadata changes all the time"))
        }
        RecoveryFailure::MetadataChanged(how) => {
            Error::new(ErrorKind::Metadata, format!("{message}: its metadata changed under the recovery, {how}"))
        }
        RecoveryFailure::Transition(error) => Error::with_source(ErrorKind::Metadata, message, error),
    }
}
