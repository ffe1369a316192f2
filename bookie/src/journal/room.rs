//! Where the next group goes: room in the current segment, or a new segment.

use std::sync::Arc;

use super::group::Demand;
use super::maker::MakeError;
use super::{Class, JournalWriter, SealJob, describe};
use crate::config::{
    CONTROL_RESERVE_BYTES_MAX, CONTROL_SEGMENT_BYTES, CONTROL_SEGMENT_BYTES_MIN, SEGMENT_ENTRIES_MAX, room_needed,
};
use crate::disk::BLOCK_BYTES;
use crate::index::rows;
use crate::stall::StallCause;

/// Why a group has no place.
pub(super) enum NoRoom {
    /// No space, for now.
    Space(String),
    /// The disk or the index failed.
    Failed(String),
}

impl JournalWriter {
    /// Whether the current segment has room.
    pub(super) fn fits(&self, demand: &Demand) -> bool {
        let Some(segment) = &self.current else { return false };
        if segment.class == Class::Control && demand.is_ordinary {
            return false;
        }
        let (unpublished, records) = self.flights.unpublished();
        let (entries, ledgers) = {
            let index = segment.index();
            (index.entries + unpublished + demand.entries, index.ledgers() + records + demand.records)
        };
        let reserve = if demand.is_ordinary { (segment.capacity / 16).min(CONTROL_RESERVE_BYTES_MAX) } else { 0 };
        let end = self.end + demand.group_bytes() + reserve;
        entries <= SEGMENT_ENTRIES_MAX.max(demand.entries) && end + room_needed(entries, ledgers) <= segment.capacity
    }

    /// Bytes of a segment that certainly has room for the demand.
    fn segment_bytes(demand: &Demand) -> u64 {
        let needed = BLOCK_BYTES as u64 + demand.group_bytes() + room_needed(demand.entries, demand.records);
        let reserve = BLOCK_BYTES as u64 + (needed / 8).min(CONTROL_RESERVE_BYTES_MAX);
        (needed + reserve).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Makes room for as much of the next batch as there is space for. The least class that is written; `None` when nothing is.
    ///
    /// # Errors
    /// When the disk or the index failed.
    pub(super) async fn make_room_for_next(&mut self) -> Result<Option<Class>, String> {
        for class in [Class::Normal, Class::Priority, Class::Control] {
            match self.make_room(&Demand::of(&self.next, class), class).await {
                Ok(()) => return Ok(Some(class)),
                Err(NoRoom::Failed(reason)) => return Err(reason),
                Err(NoRoom::Space(reason)) => match class {
                    Class::Normal => self.store.condition.read_only(reason),
                    Class::Priority => self.store.condition.refuse_priority(),
                    Class::Control => {}
                },
            }
        }
        Ok(None)
    }

    async fn make_room(&mut self, demand: &Demand, class: Class) -> Result<(), NoRoom> {
        let config = &self.store.config;
        let needed = Self::segment_bytes(demand);
        let bytes = match class {
            _ if demand.records == 0 => return Ok(()),
            Class::Normal => config.segment_bytes.bytes(),
            Class::Priority => config.priority_segment_bytes(),
            Class::Control => return self.make_control_room(demand, needed).await,
        };
        // Twice at most: a spare segment comes first and may be too small for a very long entry.
        while !self.fits(demand) {
            self.roll(bytes.max(needed), class).await?;
        }
        Ok(())
    }

    async fn make_control_room(&mut self, demand: &Demand, needed: u64) -> Result<(), NoRoom> {
        if self.fits(demand) {
            return Ok(());
        }
        match self.roll(CONTROL_SEGMENT_BYTES.max(needed), Class::Control).await {
            Err(NoRoom::Space(_)) => self.roll(CONTROL_SEGMENT_BYTES_MIN.max(needed), Class::Control).await,
            other => other,
        }
    }

    /// Hands the current segment to the sealer and opens the next.
    pub(super) async fn roll(&mut self, bytes: u64, class: Class) -> Result<(), NoRoom> {
        // The groups of a segment are all durable before the next segment has any.
        self.drain().await.map_err(NoRoom::Failed)?;
        self.hand_over().await?;
        // Whatever of this does not answer, the journal waits for it.
        let _noted = self.store.stalls.begin(StallCause::Journal);
        let (maker, store) = (self.maker.clone(), self.store.clone());
        let next = match self.meanwhile(maker.next(bytes, class)).await {
            Ok(next) => next,
            Err(MakeError::NoSpace(reason)) => return Err(NoRoom::Space(reason)),
            Err(MakeError::Failed(error)) => return Err(NoRoom::Failed(describe(&error))),
        };
        // From here on a start without this file is refused.
        if let Err(error) = self.meanwhile(store.write_index(vec![rows::put_opened(next.id())])).await {
            let reason = describe(&error);
            if !error.is_index_full() {
                return Err(NoRoom::Failed(reason));
            }
            // Its id is used up, so that the next segment must be this one.
            maker.put_back(next).await;
            return Err(NoRoom::Space(reason));
        }
        let next = Arc::new(next);
        next.index_mut().last_sequence = self.sequence;
        self.store.add_unsealed(next.clone());
        (self.end, self.spare_asked) = (BLOCK_BYTES as u64, false);
        // All before is durable, and that there is this segment says so.
        (self.unsettled, self.unclosed) = (false, false);
        self.full = self.current.replace(next);
        // What it has no place for now is the next roll's affair.
        let _ = self.hand_over().await;
        Ok(())
    }

    /// Gives the sealer a full segment that waits. A sealer that is busy is waited for, one that waits for space is not.
    async fn hand_over(&mut self) -> Result<(), NoRoom> {
        let Some(full) = self.full.clone() else { return Ok(()) };
        let (seal, mut waits) = (self.seal.clone(), self.store.seal_waits.subscribe());
        let handed_over = async {
            tokio::select! {
                biased;
                place = seal.reserve() => {
                    // The sealer ends after the writer; if it is gone it has failed and said so.
                    if let Ok(place) = place {
                        place.send(SealJob(full));
                    }
                    true
                }
                // The sender lives in the store, which this task holds.
                _ = waits.wait_for(|waits| *waits) => false,
            }
        };
        if !self.meanwhile(handed_over).await {
            return Err(NoRoom::Space("full segments wait for space in the index".to_owned()));
        }
        self.full = None;
        Ok(())
    }
}
