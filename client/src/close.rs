//! Carries out what [`CloseMachine`] decides, and the metadata calls that closing and recovery share.

use std::future::Future;

use ledger::{EntryId, LedgerId, LedgerMetadata};
use metadata::{LedgerRecord, UpdateError, Version};

use crate::closing::{CloseFailure, CloseMachine, CloseStep};
use crate::error::{Error, ErrorKind};
use crate::shared::Core;

/// How a conditional write of ledger metadata ended.
pub(crate) enum Written {
    Done(Version),
    Conflict(Option<Box<LedgerRecord>>),
    Unknown,
}

impl Core {
    /// Waits for a metadata operation, with the client's deadline.
    pub(crate) async fn within<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.config.metadata_timeout.duration(), operation).await.ok()
    }

    /// Reads a ledger's record as a proof.
    pub(crate) async fn read_record(&self, ledger: LedgerId) -> Result<Option<LedgerRecord>, Error> {
        let failed = || format!("read metadata of ledger {ledger}");
        match self.within(self.ledgers.get_quorum(ledger)).await {
            Some(Ok(record)) => Ok(record),
            Some(Err(error)) => Err(Error::with_source(ErrorKind::Metadata, failed(), error)),
            None => Err(Error::new(ErrorKind::Timeout, format!("{}: no answer in time", failed()))),
        }
    }

    /// Writes a ledger's record if it still has the version `expected`. The error: surely not written.
    pub(crate) async fn write_record(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        expected: Version,
    ) -> Result<Written, Error> {
        Ok(match self.within(self.ledgers.update(ledger, metadata, expected)).await {
            Some(Ok(version)) => Written::Done(version),
            Some(Err(UpdateError::Conflict(found))) => Written::Conflict(found),
            Some(Err(UpdateError::NotDone(error))) => {
                return Err(Error::with_source(
                    ErrorKind::Metadata,
                    format!("write metadata of ledger {ledger}"),
                    error,
                ));
            }
            Some(Err(UpdateError::Unknown(error))) => {
                tracing::warn!(ledger_id = %ledger, error = &error as &dyn std::error::Error, "unknown outcome of a metadata write");
                Written::Unknown
            }
            None => Written::Unknown,
        })
    }
}

/// Fixes the end of a ledger that this client writes.
pub(crate) async fn close_ledger(
    core: &Core,
    ledger: LedgerId,
    record: &LedgerRecord,
    last_entry: Option<EntryId>,
    length: u64,
) -> Result<LedgerMetadata, Error> {
    let mut machine = CloseMachine::new(record.metadata.clone(), last_entry, length);
    let mut version = record.version;
    let mut is_unsure = false;
    let mut step = machine.start();
    loop {
        step = match step {
            CloseStep::Write(metadata) => match core.write_record(ledger, &metadata, version).await {
                Ok(Written::Done(_)) => machine.on_written(),
                Ok(Written::Conflict(found)) => machine.on_found(found.map(|found| take(*found, &mut version))),
                Ok(Written::Unknown) => {
                    is_unsure = true;
                    machine.on_unknown()
                }
                Err(error) => return Err(unsure(ledger, error, is_unsure)),
            },
            CloseStep::Read => match core.read_record(ledger).await {
                Ok(found) => machine.on_found(found.map(|found| take(found, &mut version))),
                Err(error) => return Err(unsure(ledger, error, is_unsure)),
            },
            CloseStep::Done(metadata) => return Ok(*metadata),
            CloseStep::Failed(failure) => return Err(close_error(ledger, failure)),
        };
    }
}

fn take(record: LedgerRecord, version: &mut Version) -> LedgerMetadata {
    *version = record.version;
    record.metadata
}

fn unsure(ledger: LedgerId, error: Error, is_unsure: bool) -> Error {
    if is_unsure {
        Error::because(
            ErrorKind::Unknown,
            format!("close ledger {ledger}: an earlier write may have closed it"),
            &error,
        )
    } else {
        error
    }
}

fn close_error(ledger: LedgerId, failure: CloseFailure) -> Error {
    let (kind, why) = match failure {
        CloseFailure::NoSuchLedger => (ErrorKind::NoSuchLedger, "it was deleted".to_owned()),
        CloseFailure::InRecovery => (ErrorKind::Fenced, "another client recovers it".to_owned()),
        CloseFailure::ClosedAt(Some(last)) => (ErrorKind::Closed, format!("another client closed it at entry {last}")),
        CloseFailure::ClosedAt(None) => (ErrorKind::Closed, "another client closed it empty".to_owned()),
        CloseFailure::SegmentsChanged => (ErrorKind::Metadata, "another client changed its ensembles".to_owned()),
        CloseFailure::Contention => (ErrorKind::Metadata, "its metadata changes all the time".to_owned()),
        CloseFailure::Transition(error) => {
            return Error::with_source(ErrorKind::Metadata, format!("close ledger {ledger}"), error);
        }
    };
    Error::new(kind, format!("close ledger {ledger}: {why}"))
}
