use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::rng::Rng;
use tokio::sync::{Mutex, Notify};

use super::{Class, describe};
use crate::config::CONTROL_BYTES_MAX;
use crate::disk::AlignedBuffer;
use crate::error::Error;
use crate::format::{SegmentHeader, SegmentId};
use crate::store::{OpenSegment, Store};

/// Makes segments: reserves their space before they are used, within the disk budget.
pub(crate) struct SegmentMaker {
    store: Arc<Store>,
    rng: Rng,
    state: Mutex<State>,
    spare_wanted: Notify,
}

struct State {
    next: SegmentId,
    /// Oldest first. More than one only where segments came back because the index had no space to name them.
    spares: VecDeque<OpenSegment>,
    /// A file was made halfway: its id is used up, and no later one may ever be used, or its start would miss this one.
    failed: Option<String>,
}

/// Why there is no segment.
#[derive(Debug)]
pub(crate) enum MakeError {
    /// The budget or the disk has no space; nothing is wrong.
    NoSpace(String),
    /// The disk failed.
    Failed(Error),
}

impl State {
    fn check(&self) -> Result<(), MakeError> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(MakeError::Failed(Error::JournalFailed(reason.clone()))),
        }
    }
}

impl SegmentMaker {
    /// `next` is above every id ever used.
    pub(crate) fn new(store: Arc<Store>, rng: Rng, next: SegmentId) -> Self {
        Self {
            store,
            rng,
            state: Mutex::new(State { next, spares: VecDeque::new(), failed: None }),
            spare_wanted: Notify::new(),
        }
    }

    /// The next segment, of at least `bytes` unless a spare one comes first. See [`Class`] for the space it may take.
    pub(crate) async fn next(&self, bytes: u64, class: Class) -> Result<OpenSegment, MakeError> {
        let mut state = self.state.lock().await;
        state.check()?;
        if let Some(spare) = state.spares.pop_front() {
            self.store.spare_segments.fetch_sub(1, Ordering::Relaxed);
            return Ok(spare);
        }
        self.create(&mut state, bytes, class).await
    }

    /// Takes back a segment that [`SegmentMaker::next`] gave last and that was not used.
    pub(crate) async fn put_back(&self, segment: OpenSegment) {
        self.state.lock().await.spares.push_front(segment);
        self.store.spare_segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the sealer to prepare a spare segment.
    pub(crate) fn want_spare(&self) {
        self.spare_wanted.notify_one();
    }

    /// Resolves when a spare segment was asked for. Cancel-safe.
    pub(crate) async fn spare_wanted(&self) {
        self.spare_wanted.notified().await;
    }

    /// Prepares a spare segment; without space there is none, which shows when the segment is needed. A disk that fails ends
    /// writing, whoever asked.
    pub(crate) async fn prepare_spare(&self) -> Result<(), MakeError> {
        let mut state = self.state.lock().await;
        state.check()?;
        if state.spares.iter().all(|spare| spare.class != Class::Normal) {
            let spare = self.create(&mut state, self.store.config.segment_bytes.bytes(), Class::Normal).await;
            let spare = spare.inspect_err(|error| {
                if let MakeError::Failed(error) = error {
                    self.store.condition.fail(describe(error));
                }
            })?;
            state.spares.push_back(spare);
            self.store.spare_segments.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn create(&self, state: &mut State, bytes: u64, class: Class) -> Result<OpenSegment, MakeError> {
        let made = self.try_create(state, bytes, class).await;
        if let Err(MakeError::Failed(error)) = &made {
            state.failed = Some(describe(error));
        }
        made
    }

    async fn try_create(&self, state: &mut State, bytes: u64, class: Class) -> Result<OpenSegment, MakeError> {
        let store = &self.store;
        self.check_space(bytes, class).await?;
        let header = SegmentHeader { id: state.next, nonce: self.rng.next_u64() };
        let path = store.journal_dir.join(header.id.file_name());
        let file = match store.disk.create(&path, bytes).await {
            Ok(file) => file,
            Err(error) if is_full(&error) => return Err(MakeError::NoSpace(format!("the disk is full: {error}"))),
            Err(error) => return Err(MakeError::Failed(Error::disk("create", &path)(error))),
        };
        // The id is used up by the file, whatever comes next.
        state.next = header.id.next();
        store.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Whatever the sync mode: without its header no group of the segment can be told from what the disk held before.
        let (_, written) = file.write(0, AlignedBuffer::copy_of(&header.encode_reserved(bytes)), true).await;
        written.map_err(Error::disk("write", &path)).map_err(MakeError::Failed)?;
        let synced = store.disk.sync_dir(&store.journal_dir).await;
        synced.map_err(Error::disk("sync", &store.journal_dir)).map_err(MakeError::Failed)?;
        Ok(OpenSegment::new(header, path, file, bytes, class))
    }

    /// Whether a segment for entries of high priority could be made now.
    pub(crate) async fn has_priority_space(&self) -> bool {
        self.check_space(self.store.config.priority_segment_bytes(), Class::Priority).await.is_ok()
    }

    /// Whether there is space for a while and not for one segment only: four of them, or a twentieth of the budget where that is less.
    pub(crate) async fn has_room_to_go_on(&self) -> bool {
        let config = &self.store.config;
        let segment = config.segment_bytes.bytes();
        let room = segment.max((4 * segment).min(config.disk_bytes_max.bytes() / 20));
        self.check_space(room, Class::Normal).await.is_ok()
    }

    async fn check_space(&self, bytes: u64, class: Class) -> Result<(), MakeError> {
        let store = &self.store;
        let (config, allocated) = (&store.config, store.allocated_bytes.load(Ordering::Relaxed));
        let (limit, kept) = (config.disk_bytes_max.bytes(), config.priority_reserve_bytes.bytes());
        // How far the budget may be exceeded, and what is left to others; keys and fences take the last there is.
        let (over, floor) = match class {
            Class::Normal => (0, Some(config.disk_free_bytes_min.bytes())),
            Class::Priority => (kept, Some(config.disk_free_bytes_min.bytes().saturating_sub(kept))),
            Class::Control => (kept.saturating_add(CONTROL_BYTES_MAX), None),
        };
        if class == Class::Priority && kept == 0 {
            return Err(MakeError::NoSpace("no space is kept for entries of high priority".to_owned()));
        }
        if allocated.saturating_add(bytes) > limit.saturating_add(over) {
            let reason = format!(
                "segments occupy {allocated} bytes of disk_bytes_max = {}, and the next needs {bytes}",
                config.disk_bytes_max
            );
            return Err(MakeError::NoSpace(reason));
        }
        let Some(floor) = floor else { return Ok(()) };
        let dir = &store.journal_dir;
        let free = store.disk.free_bytes(dir).await.map_err(Error::disk("ask for the free space of", dir));
        let free = free.map_err(MakeError::Failed)?;
        if free < floor.saturating_add(bytes) {
            let reason = format!(
                "the file system of {} has {free} bytes free, disk_free_bytes_min = {} are left to others",
                dir.display(),
                config.disk_free_bytes_min
            );
            return Err(MakeError::NoSpace(reason));
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
