//! Entries as bookies stored them: what clients of BookKeeper's protocol are sent.

use std::sync::Arc;

use bytes::Bytes;
use cold::{EntryRead, Row};
use common::budget::{ByteBudget, BytePermit};
use ledger::{ColdRecord, Digester, EntryId, LedgerId, LedgerMetadata, MasterKey};
use metadata::LedgerRecord;
use uuid::Uuid;

use super::share::{Share, SharePermit};
use super::{ColdTier, cold_record};
use crate::blocks::BlockTable;
use crate::error::{Error, ErrorKind, Result};
use crate::flights::{Flights, Wanted};
use crate::objects::OpenObject;

/// What has to be known of a closed ledger to serve its bodies.
#[derive(Debug)]
pub(crate) struct ColdLedger {
    pub(crate) id: LedgerId,
    /// `None`: it is closed without any entry.
    pub(crate) last: Option<EntryId>,
    /// The key of those who may fence it; `None` where the metadata has no password.
    pub(crate) master_key: Option<MasterKey>,
    digester: Option<Digester>,
    /// Of a ledger that has entries.
    record: Option<ColdRecord>,
}

impl ColdLedger {
    /// Reads what the metadata says.
    ///
    /// # Errors
    /// `Unavailable` for a ledger that the cold tier does not have, or not yet: that says nothing about its entries. `Damaged` when
    /// its cold record cannot be.
    pub(crate) fn of(id: LedgerId, record: &LedgerRecord) -> Result<Self> {
        let metadata: &LedgerMetadata = &record.metadata;
        let not_here = |why: &str| {
            let message = format!("serve ledger {id} under its cold ids: {why}; ask its bookies");
            Err(Error::new(ErrorKind::Unavailable, message))
        };
        if !metadata.is_closed() {
            return not_here("it is not closed");
        }
        let last = metadata.last_entry();
        let cold = match last {
            None => None,
            Some(_) if metadata.custom(ColdRecord::KEY).is_none() => return not_here("it has no object"),
            Some(_) => Some(cold_record(id, metadata)?),
        };
        let (master_key, digester) = (metadata.master_key(), metadata.digester());
        Ok(Self { id, last, master_key, digester, record: cold })
    }
}

/// How a read is expected to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The first or the last entry of a ledger, asked for by itself: what auditors and proofs of releases read.
    End,
    /// One entry.
    Point,
    /// The entries behind will be asked for too.
    Scan,
}

/// Which bodies are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The first; it lies within the ledger.
    pub(crate) first: EntryId,
    /// At most so many; at least one.
    pub(crate) count: u64,
    /// At most so many bytes with `overhead` for each; the first body may exceed it.
    pub(crate) bytes: u64,
    /// What a body costs beside its bytes.
    pub(crate) overhead: u64,
    /// How the read is expected to go on.
    pub(crate) access: Access,
}

impl Ask {
    /// One entry.
    pub(crate) fn one(first: EntryId, access: Access) -> Self {
        Self { first, count: 1, bytes: u64::MAX, overhead: 0, access }
    }
}

/// Memory for replies.
pub(crate) struct Memory {
    /// Of replies to one peer.
    pub(crate) replies: Share,
    /// For the ends of ledgers when others use up everything else.
    pub(crate) ends: EndsMemory,
}

/// Memory for reading the ends of ledgers when others use up everything else. Whoever waits for a later part may hold bytes of the
/// parts before it, and of no other: so nobody waits for himself.
#[derive(Clone)]
pub(crate) struct EndsMemory {
    /// For their objects' indexes.
    pub(crate) indexes: ByteBudget,
    /// For their pages.
    pub(crate) reads: ByteBudget,
    /// For replies that their peers have not taken yet.
    pub(crate) replies: Share,
}

/// The body of an end that was read for all who ask for it at the same time.
pub(super) struct EndBody {
    body: Bytes,
    _permit: BytePermit,
}

/// An end that is read. What an entry must be is said by its ledger, so one object under two ledgers' names is read for each.
type EndKey = (Uuid, LedgerId, EntryId);

/// The reads of ends that are under way.
pub(super) type EndReads = Flights<EndKey, Arc<EndBody>>;

/// Bodies of consecutive entries, and the memory they are charged to.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// At least one.
    pub(crate) bodies: Vec<Bytes>,
    pub(crate) permit: SharePermit,
}

/// What was found in memory that the replies' budget may not have room for yet.
enum Tried {
    Bodies(Bodies),
    NeedsRoom(u64),
}

impl ColdTier {
    /// Bodies from `ask.first` on, at least one. Cancel-safe.
    ///
    /// # Errors
    /// Damage, an unreachable store, or no room in time; the message names the object.
    pub(crate) async fn bodies(&self, ledger: &Arc<ColdLedger>, ask: Ask, memory: &Memory) -> Result<Bodies> {
        if ask.access == Access::End {
            return self.end_body(ledger, ask.first, memory).await;
        }
        let mut room = None;
        loop {
            match self.try_bodies(ledger, ask, memory, room.take()).await? {
                Tried::Bodies(bodies) => return Ok(bodies),
                // Nothing of a block is held here: nobody waits for memory with memory in hand.
                Tried::NeedsRoom(bytes) => room = Some(memory.replies.acquire(bytes).await),
            }
        }
    }

    async fn try_bodies(
        &self,
        ledger: &ColdLedger,
        ask: Ask,
        memory: &Memory,
        room: Option<SharePermit>,
    ) -> Result<Tried> {
        let Some(record) = &ledger.record else { return Err(no_object(ledger)) };
        let object = self.objects.open(ledger.id, record).await?;
        let check = BodyCheck { ledger, key: object.reader().key() };
        if ask.access == Access::Point {
            let row = self.blocks.row(&object, ask.first).await?.ok_or_else(|| check.missing(ask.first))?;
            return check.take(std::iter::once(Ok(Row::clone(&row))), ask, memory, room);
        }
        let group = object.reader().group_of(ask.first).ok_or_else(|| check.missing(ask.first))?;
        let block = self.blocks.block(&object, group.index).await?;
        if ledger.last.is_some_and(|last| last >= group.end) {
            self.blocks.prefetch(&object, group.index + 1);
        }
        let end = EntryId::new(ask.first.get().saturating_add(ask.count)).map_or(group.end, |end| end.min(group.end));
        // From here on there is no await: the block is not held while anything is waited for.
        check.take(block.rows(ask.first..end).map(|row| row.map_err(Error::from)), ask, memory, room)
    }

    /// The first or last body of a ledger. It comes from what is cached, else from the store, within the memory of row groups if
    /// there is some left, else with memory of its own: so that it is served however busy the gateway is. Whoever asks for the same
    /// one meanwhile is served by the same read.
    async fn end_body(&self, ledger: &Arc<ColdLedger>, entry: EntryId, memory: &Memory) -> Result<Bodies> {
        let Some(record) = &ledger.record else { return Err(no_object(ledger)) };
        let object = self.objects.open_with_reserve(ledger.id, record, &memory.ends.indexes).await?;
        let check = BodyCheck { ledger, key: object.reader().key() };
        let mut room = None;
        while let Some(row) = self.blocks.cached_row(&object, entry).await? {
            let bytes = check.body_bytes(&row);
            let reply = memory.replies.try_acquire(bytes).or_else(|| memory.ends.replies.take(room.take(), bytes));
            if let Some(permit) = reply {
                return Ok(Bodies { bodies: vec![check.body(&row, entry)?], permit });
            }
            // The row is in memory, and so is not read again; but its block is not held while anything is waited for.
            drop(row);
            room = Some(memory.ends.replies.acquire(bytes).await);
        }
        // Gone meanwhile. Its room comes last, so that nobody waits for himself.
        drop(room);
        let (_, read) = self.ends.join_or_begin((object.object(), ledger.id, entry), |wanted| {
            let (blocks, reads) = (Arc::clone(&self.blocks), memory.ends.reads.clone());
            let (ledger, object) = (Arc::clone(ledger), Arc::clone(&object));
            async move { Box::pin(read_end(&*blocks, &ledger, &object, entry, &reads, &wanted)).await.map(Arc::new) }
        });
        drop(object);
        let read = read.await?;
        let bytes = read.body.len() as u64;
        // Where there is room, the reply waits for its peer elsewhere: slow peers must not hold up the ends that others read.
        let permit = match memory.replies.try_acquire(bytes) {
            Some(permit) => permit,
            None => memory.ends.replies.acquire(bytes).await,
        };
        Ok(Bodies { bodies: vec![read.body.clone()], permit })
    }
}

/// Reads an end. What it gives is charged for as long as somebody holds it.
async fn read_end(
    blocks: &dyn BlockTable,
    ledger: &ColdLedger,
    object: &Arc<OpenObject>,
    entry: EntryId,
    reads: &ByteBudget,
    wanted: &Wanted<EndKey, Arc<EndBody>>,
) -> Result<EndBody> {
    let reader = object.reader();
    let check = BodyCheck { ledger, key: reader.key() };
    let mut expected = reader.entry_bytes(entry);
    while let Some(bytes) = expected.filter(|bytes| *bytes <= reads.limit_bytes()) {
        let mut permit = match blocks.try_room(bytes) {
            Some(permit) => permit,
            None => wanted.room(reads, bytes).await?,
        };
        match reader.read_entry_within(entry, bytes).await? {
            EntryRead::Row(row) => {
                let body = check.body(&row, entry)?;
                permit.shrink_to(body.len() as u64);
                return Ok(EndBody { body, _permit: permit });
            }
            EntryRead::Needs(more) => expected = Some(more),
        }
    }
    // What only its whole row group gives, or is larger than any entry of a client, is read as others are.
    let mut room: Option<BytePermit> = None;
    loop {
        let row = blocks.row(object, entry).await?.ok_or_else(|| check.missing(entry))?;
        let bytes = check.body_bytes(&row);
        match room.take().or_else(|| reads.try_acquire(bytes)) {
            Some(permit) => return Ok(EndBody { body: check.body(&row, entry)?, _permit: permit }),
            // The row may hold a block, which must not be held while anything is waited for: it is looked up again.
            None => drop(row),
        }
        room = Some(wanted.room(reads, bytes).await?);
    }
}

fn no_object(ledger: &ColdLedger) -> Error {
    Error::new(ErrorKind::OutOfRange, format!("ledger {} is closed without any entry", ledger.id))
}

/// Holds rows to what the ledger says they must be.
struct BodyCheck<'a> {
    ledger: &'a ColdLedger,
    key: &'a str,
}

impl BodyCheck<'_> {
    fn damaged(&self, entry: EntryId, what: &str) -> Error {
        let message = format!("read object {}: entry {entry} of ledger {} {what}", self.key, self.ledger.id);
        Error::new(ErrorKind::Damaged, message)
    }

    fn missing(&self, entry: EntryId) -> Error {
        self.damaged(entry, "is missing")
    }

    fn body_bytes(&self, row: &Row) -> u64 {
        let (payload, raw) = (row.payload.as_ref().map_or(0, Bytes::len), row.raw.as_ref().map_or(0, Bytes::len));
        (ledger::BODY_HEADER_BYTES + row.digest.len() + payload + raw) as u64
    }

    /// The body that was stored on the bookies, bit for bit.
    fn body(&self, row: &Row, entry: EntryId) -> Result<Bytes> {
        if row.entry != entry || row.ledger != self.ledger.id {
            return Err(self.missing(entry));
        }
        // What was damaged on the bookies already is served as it was there: its reader sees that the digest does not match.
        if let (Some(entry_parts), Some(digester)) = (row.to_entry(), &self.ledger.digester)
            && !digester.verify_entry(&entry_parts)
        {
            return Err(self.damaged(entry, "does not match its writer's digest"));
        }
        row.rebuild_body().ok_or_else(|| self.damaged(entry, "was erased on request"))
    }

    /// Takes what fits. The copies keep no part of a block alive.
    fn take(
        &self,
        rows: impl Iterator<Item = Result<Row>>,
        ask: Ask,
        memory: &Memory,
        room: Option<SharePermit>,
    ) -> Result<Tried> {
        let (mut taken, mut bytes) = (Vec::new(), 0_u64);
        let mut expected = ask.first;
        for row in rows {
            // What is good is served; whoever asks for the next entry is told.
            let row = match row {
                Ok(row) => row,
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            };
            let more = bytes.saturating_add(self.body_bytes(&row)).saturating_add(ask.overhead);
            if !taken.is_empty() && (taken.len() as u64 >= ask.count || more > ask.bytes) {
                break;
            }
            taken.push((row, expected));
            bytes = more;
            expected = expected.next();
        }
        if taken.is_empty() {
            return Err(self.missing(ask.first));
        }
        let Some(permit) = memory.replies.take(room, bytes) else { return Ok(Tried::NeedsRoom(bytes)) };
        let mut bodies = Vec::with_capacity(taken.len());
        for (row, entry) in &taken {
            match self.body(row, *entry) {
                Ok(body) => bodies.push(body),
                Err(_) if !bodies.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Tried::Bodies(Bodies { bodies, permit }))
    }
}
