//! Settling: claim, upload, read back, commit.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use cold::{Limits, ObjectMeta, ObjectSummary, ObjectWriter, Row, verify_object};
use common::blocking::run_blocking;
use common::retry::RetryPolicy;
use futures::StreamExt as _;
use futures::stream::Fuse;
use ledger::{ColdRecord, Digester, Entry, EntryId, LedgerMetadata, LedgerState};
use metadata::{AttemptError, AttemptRecord, CommitOffload, CommitOffloadError, LedgerRecord, NewAttempt};

use crate::EntryStream;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;
use crate::observe::Step;
use crate::plan;
use crate::report::Counters;

/// Entries are encoded this many bytes at a time, or this many entries.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_ENTRIES: usize = 4_096;

/// What a writer holds at most: an encoded row group, the same again while it is put together, and two batches.
const WRITER_BYTES: u64 = 20 << 20;

/// How often a verified object is offered to a record that keeps changing.
const RECOMMITS_MAX: usize = 16;

/// A verified object is worth some patience with a metadata store that does not answer.
const COMMIT_RETRY: RetryPolicy = RetryPolicy {
    initial: Duration::from_millis(100),
    factor: 2.0,
    max: Duration::from_secs(5),
    deadline: Duration::from_secs(30),
};

impl Job<'_> {
    /// Writes the ledger's object and commits it. False: somebody else got there first, and the ledger must be looked at again.
    ///
    /// An error leaves nothing committed, or, if that is not known, leaves the attempt for the next job to find out.
    pub(crate) async fn settle(&self, record: LedgerRecord, old: Option<AttemptRecord>) -> Result<bool> {
        let _running = self.at.counters.run();
        let attempt = self.step(Step::ClaimAttempt, self.claim(old)).await?;
        let error = match self.write(record, &attempt).await {
            Ok(committed) => return Ok(committed),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::Halted | ErrorKind::Unknown)
            && let Err(second) = self.step(Step::Abandon, self.abandon(&attempt)).await
        {
            // The next job takes it over; the first error is the one to tell.
            tracing::debug!(error = &second as &dyn StdError, "attempt left behind");
        }
        Err(error)
    }

    async fn claim(&self, old: Option<AttemptRecord>) -> Result<AttemptRecord> {
        let doing = "begin to settle";
        let owner = self.at.owner.name().await.map_err(|error| Error::metadata(doing, self.ledger, error))?;
        let uuid = self.at.rng.uuid();
        let new = NewAttempt {
            uuid,
            ledger: self.ledger,
            key: ColdRecord::key_of(self.at.instance_id.as_str(), self.ledger, uuid),
            owner: owner.to_string(),
            started_ms: self.at.clock.wall_ms(),
        };
        let begun = match &old {
            None => self.at.attempts.begin(new).await,
            Some(old) => self.at.attempts.steal(old, new).await,
        };
        match begun {
            Ok(attempt) => {
                if let Some(old) = old {
                    Counters::add(&self.at.counters.abandoned, 1);
                    self.at.metrics.taken_over();
                    tracing::info!(
                        owner = old.attempt.owner,
                        object = old.attempt.key,
                        "attempt taken over and abandoned"
                    );
                }
                tracing::debug!(object = attempt.attempt.key, "attempt begun");
                Ok(attempt)
            }
            Err(AttemptError::Busy(other)) => {
                let why = format_args!("{} is settling it", other.attempt.owner);
                Err(Error::of_ledger(ErrorKind::Busy, doing, self.ledger, why))
            }
            Err(AttemptError::Lost) => {
                Err(Error::of_ledger(ErrorKind::Busy, doing, self.ledger, "the attempt to take over has ended"))
            }
            Err(AttemptError::NotDone(error)) => Err(Error::metadata(doing, self.ledger, error)),
            Err(AttemptError::Unknown(error)) => {
                Err(Error::of_ledger(ErrorKind::Unknown, doing, self.ledger, "no answer").caused_by(error))
            }
        }
    }

    async fn write(&self, record: LedgerRecord, attempt: &AttemptRecord) -> Result<bool> {
        let summary = self.step(Step::Upload, self.upload(&record.metadata, attempt)).await?;
        self.step(Step::ReadBack, self.read_back(&summary)).await?;
        self.step(Step::Commit, self.commit(record, attempt, &summary)).await
    }

    async fn upload(&self, metadata: &LedgerMetadata, attempt: &AttemptRecord) -> Result<ObjectSummary> {
        let refuse = |kind, why: &str| Error::of_ledger(kind, "settle", self.ledger, why);
        let last = metadata.last_entry().ok_or_else(|| refuse(ErrorKind::NotClosed, "it has no last entry"))?;
        let digester = metadata.digester().ok_or_else(|| refuse(ErrorKind::Unsuitable, "it has no digest type"))?;
        let key = attempt.attempt.key.as_str();
        // Both at once: jobs that hold the one and wait for the other would wait for each other, behind a third that needs much.
        let part_bytes = self.at.cold.part_bytes();
        let mut writer_permit = self.at.budget.acquire(WRITER_BYTES + part_bytes).await;
        let meta = ObjectMeta::new(self.at.instance_id.as_str(), self.ledger, attempt.attempt.uuid, metadata);
        let upload = self.at.cold.upload(key, &self.at.budget).map_err(|e| Error::cold("settle", self.ledger, e))?;
        let mut upload = upload.keep(writer_permit.split(part_bytes));
        // Fused: a batch that ends with the stream's end is followed by another look at the stream.
        let mut entries = self.at.entries.read(self.ledger, metadata, EntryId::ZERO..last.next()).await?.fuse();
        let mut encoder =
            Some(Encoder { writer: ObjectWriter::new(meta, Limits::v1()), digester, next: EntryId::ZERO });
        let sent = async {
            loop {
                let batch = self.next_batch(&mut entries).await?;
                let Some(mut work) = encoder.take() else { return Err(refuse(ErrorKind::Unavailable, "encoder lost")) };
                if batch.is_empty() {
                    return self.finish(work, last);
                }
                let (kept, chunks) = run_blocking("encode entries", move || {
                    let chunks = work.add(batch);
                    (work, chunks)
                })
                .await;
                encoder = Some(kept);
                for chunk in chunks.map_err(|error| error.of(self.ledger, key))? {
                    upload.write(chunk).await.map_err(|error| Error::cold("settle", self.ledger, error))?;
                }
            }
        };
        let (tail, summary) = match sent.await {
            Ok(done) => done,
            Err(error) => {
                // Only asks the store to forget parts that never became an object.
                if let Err(second) = upload.abort().await {
                    tracing::debug!(object = key, error = &second as &dyn StdError, "stop upload");
                }
                return Err(error);
            }
        };
        upload.write(tail).await.map_err(|error| Error::cold("settle", self.ledger, error))?;
        let uploaded = upload.finish().await.map_err(|error| Error::cold("settle", self.ledger, error))?;
        if uploaded.bytes != summary.object_bytes {
            let why = format_args!("object {key}: {} bytes sent, {} encoded", uploaded.bytes, summary.object_bytes);
            return Err(Error::of_ledger(ErrorKind::Damaged, "settle", self.ledger, why));
        }
        Ok(summary)
    }

    /// The next entries, at least one unless the stream has ended. Waits for each no longer than the configured time.
    async fn next_batch(&self, entries: &mut Fuse<EntryStream>) -> Result<Vec<Entry>> {
        let limit = self.at.config.read_timeout;
        let (mut batch, mut bytes, mut payload_bytes) = (Vec::new(), 0, 0);
        while batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            match tokio::time::timeout(limit.duration(), entries.next()).await {
                Ok(Some(entry)) => {
                    let entry = entry?;
                    payload_bytes += entry.payload.len() as u64;
                    bytes += entry.payload.len() as u64 + 64;
                    batch.push(entry);
                }
                Ok(None) => break,
                Err(_) => {
                    let why = format_args!("no entry came from the bookies within {limit}");
                    return Err(Error::of_ledger(ErrorKind::Timeout, "read", self.ledger, why));
                }
            }
        }
        self.at.metrics.entries_read(batch.len(), payload_bytes);
        Ok(batch)
    }

    fn finish(&self, encoder: Encoder, last: EntryId) -> Result<(Bytes, ObjectSummary)> {
        if encoder.next != last.next() {
            let why = format_args!("the bookies gave entries up to {}, its last one is {last}", encoder.next);
            return Err(Error::of_ledger(ErrorKind::Damaged, "read", self.ledger, why));
        }
        encoder.writer.finish().map_err(|error| Error::cold("settle", self.ledger, error))
    }

    async fn read_back(&self, summary: &ObjectSummary) -> Result<()> {
        verify_object(&self.at.cold, self.at.instance_id.as_str(), self.ledger, summary, &self.at.budget)
            .await
            .map_err(|error| Error::cold("read back the object of", self.ledger, error))
    }

    /// Commits a verified object. False: another object was committed, or the attempt was taken over.
    async fn commit(&self, mut record: LedgerRecord, attempt: &AttemptRecord, summary: &ObjectSummary) -> Result<bool> {
        let written = record.metadata.clone();
        let length_differs = match written.state() {
            LedgerState::Closed { length, .. } if length != summary.payload_bytes => Some(length),
            _ => None,
        };
        let cold = summary.to_record(self.at.cold.store_id(), attempt.attempt.counter, length_differs);
        let object = attempt.attempt.key.as_str();
        let started = self.at.clock.now();
        let mut backoff = COMMIT_RETRY.backoff();
        for _ in 0..RECOMMITS_MAX {
            let metadata = record.metadata.with_cold_record(&cold).map_err(|error| {
                Error::of_ledger(ErrorKind::Unsuitable, "commit", self.ledger, format_args!("object {object}"))
                    .caused_by(error)
            })?;
            let offload = CommitOffload {
                attempt,
                metadata: &metadata,
                expected: record.version,
                object_bytes: summary.object_bytes,
            };
            match self.at.catalog.commit(offload).await {
                Ok(_) => {
                    self.committed(&cold, object);
                    return Ok(true);
                }
                // Whoever ended it has condemned our object.
                Err(CommitOffloadError::AttemptLost) => {
                    tracing::info!(object, "attempt was taken over before its commit");
                    return Ok(false);
                }
                Err(CommitOffloadError::LedgerMoved(Some(now))) if plan::may_recommit(&written, &now.metadata) => {
                    tracing::debug!(object, "ledger record changed; the cold record goes into the new one");
                    record = *now;
                }
                Err(CommitOffloadError::LedgerMoved(_)) => {
                    self.abandon(attempt).await?;
                    return Ok(false);
                }
                Err(CommitOffloadError::NotDone(error)) => {
                    let wait = backoff.next_wait(&self.at.rng);
                    let out_of_time = self.at.clock.now() - started + wait > COMMIT_RETRY.deadline;
                    if out_of_time || error.kind() != metadata::ErrorKind::Unavailable {
                        return Err(Error::metadata(&format!("commit object {object} of"), self.ledger, error));
                    }
                    tokio::time::sleep(wait).await;
                }
                Err(CommitOffloadError::Unknown(error)) => {
                    let why = format_args!("object {object}: it is unknown whether it was committed");
                    return Err(Error::of_ledger(ErrorKind::Unknown, "commit", self.ledger, why).caused_by(error));
                }
            }
        }
        Err(Error::of_ledger(
            ErrorKind::Busy,
            "commit",
            self.ledger,
            format_args!("object {object}: its record keeps changing"),
        ))
    }

    fn committed(&self, cold: &ColdRecord, object: &str) {
        let counters = &self.at.counters;
        Counters::add(&counters.settled, 1);
        Counters::add(&counters.payload_bytes, cold.payload_bytes);
        Counters::add(&counters.object_bytes, cold.object_bytes);
        self.at.seen.note(self.ledger, true, self.at.clock.now());
        if let Some(length) = cold.length_differs {
            Counters::add(&counters.length_differs, 1);
            let payload_bytes = cold.payload_bytes;
            tracing::info!(
                object,
                length,
                payload_bytes,
                "sealed length is not the sum of the payloads; both are kept"
            );
        }
        let (entries, object_bytes) = (cold.entries, cold.object_bytes);
        tracing::info!(object, entries, object_bytes, "ledger settled");
    }
}

/// Turns entries into bytes of the object; moves to a thread for blocking work and back.
struct Encoder {
    writer: ObjectWriter,
    digester: Digester,
    next: EntryId,
}

/// Why an entry was not encoded.
enum Refusal {
    Entry(String),
    Writer(cold::Error),
}

impl Refusal {
    fn of(self, ledger: ledger::LedgerId, object: &str) -> Error {
        match self {
            Self::Entry(why) => Error::of_ledger(ErrorKind::Damaged, "settle", ledger, why),
            Self::Writer(error) => {
                let kind =
                    if error.kind() == cold::ErrorKind::Invalid { ErrorKind::Unsuitable } else { ErrorKind::Damaged };
                Error::of_ledger(kind, "settle", ledger, format_args!("object {object}")).caused_by(error)
            }
        }
    }
}

impl Encoder {
    /// Adds entries whose ids must go on where the last ones ended and whose digests must be the writer's. Gives the bytes that
    /// are ready.
    fn add(&mut self, batch: Vec<Entry>) -> std::result::Result<Vec<Bytes>, Refusal> {
        let mut chunks = Vec::new();
        for entry in batch {
            let id = entry.header.entry;
            if id != self.next {
                return Err(Refusal::Entry(format!("the bookies gave entry {id} where entry {} must be", self.next)));
            }
            if !self.digester.verify_entry(&entry) {
                return Err(Refusal::Entry(format!("entry {id} does not have its writer's digest")));
            }
            chunks.extend(self.writer.push(Row::from_entry(&entry)).map_err(Refusal::Writer)?);
            self.next = id.next();
        }
        Ok(chunks)
    }
}
