use std::sync::Arc;

use bytes::Bytes;
use common::budget::ByteBudget;
use common::clock::Clock;
use common::metrics::Set;
use common::net::Connector;
use common::rng::Rng;
use common::shutdown::TaskTree;
use ledger::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Password, Quorums, is_cold};
use metadata::{Bookies, LedgerRecord, Ledgers, MetadataStore, UpdateError, Version};

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind};
use crate::geometry::Geometry;
use crate::ledger_reader::LedgerReader;
use crate::ledger_writer::LedgerWriter;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::recover::recover;
use crate::shared::{Core, Keys};

/// How often another id is taken when someone else's ledger has the one that was given. Ids can be chosen by writers too.
const IDS_TRIED_MAX: usize = 16;

/// What a client is made of.
pub struct ClientParts {
    /// Where ledgers and bookies are registered.
    pub metadata: Arc<dyn MetadataStore>,
    /// How connections are opened.
    pub connector: Arc<dyn Connector>,
    /// The time.
    pub clock: Clock,
    /// Randomness: which bookies a ledger gets, tokens, pauses.
    pub rng: Rng,
    /// Bytes this client may hold: appends under way up to three quarters, reads ahead up to a half.
    pub budget: ByteBudget,
    /// Where connections and writers run.
    pub tasks: TaskTree,
}

/// What a new ledger is like.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Ensemble, write and ack quorum.
    pub quorums: Quorums,
    /// How entries are sealed.
    pub digest: DigestType,
    /// What opens the ledger; empty is common.
    pub password: Password,
    /// Custom metadata, in order.
    pub custom: Vec<(String, Bytes)>,
}

/// How to open a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Take an open ledger from its writer, find its end and close it. A closed ledger is just opened.
    Recover,
    /// Leave an open ledger to its writer and read what is confirmed.
    ReadOnly,
}

/// An opened ledger.
pub enum Opened {
    /// Its entries, or some of them, are on bookies.
    Hot(LedgerReader),
    /// Every member of every segment is in the cold tier: ask a read gateway.
    Cold(LedgerRecord),
}

/// Writes, reads and recovers ledgers. Cheap to clone; clones share connections and budget.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// A client; nothing is dialled before the first request. It stops with the task tree it was given.
    pub fn new(parts: ClientParts, config: ClientConfig) -> Self {
        let ClientParts { metadata, connector, clock, rng, budget, tasks } = parts;
        let bookies = Bookies::new(Arc::clone(&metadata));
        let limit = budget.limit_bytes();
        let core = Core {
            ledgers: Ledgers::new(metadata),
            pool: Pool::new(connector, bookies.clone(), config.clone(), rng.fork(), tasks.clone()),
            bookies,
            clock,
            rng,
            config,
            tasks,
            metrics: Metrics::new(),
            append_budget: budget.child("client-appends", limit / 4 * 3),
            read_budget: budget.child("client-reads", limit / 2),
        };
        Self { core: Arc::new(core) }
    }

    /// The client's metrics.
    pub fn metrics(&self) -> Set {
        self.core.metrics.shown()
    }

    /// Creates a ledger on randomly chosen writable bookies. Its id is a new one: where a ledger has it already, another is tried.
    ///
    /// Not cancel-safe: a dropped call may leave an empty ledger behind.
    ///
    /// # Errors
    /// `NotEnoughBookies`, `Unsupported` for ensembles above 64, `Metadata`, or `Unknown` when the ledger may exist.
    pub async fn create(&self, options: CreateOptions) -> Result<LedgerWriter, Error> {
        let CreateOptions { quorums, digest, password, custom } = options;
        Geometry::new(quorums)?;
        let core = &self.core;
        let ensemble = self.choose(quorums).await?;
        let describe = || -> Result<LedgerMetadata, ledger::Error> {
            let mut metadata = LedgerMetadata::open(quorums, ensemble, digest, password.clone())?;
            for (key, value) in custom {
                metadata = metadata.with_custom(key, value)?;
            }
            // The token, which is never 0, lets an unknown outcome be told by reading back.
            let token = i64::try_from(core.rng.next_u64() >> 1).unwrap_or(i64::MAX).max(1);
            let ctime_ms = i64::try_from(core.clock.wall_ms()).unwrap_or(i64::MAX);
            metadata.with_ctime_ms(ctime_ms)?.with_ctoken(token)
        };
        let invalid = |error| Error::with_source(ErrorKind::Unsupported, "create ledger: describe it", error);
        let metadata = describe().map_err(invalid)?;
        for _ in 0..IDS_TRIED_MAX {
            let id = self.allocate_id().await?;
            let keys = Keys::of(id, &metadata, Some(&password))?;
            if let Some(version) = self.create_record(id, &metadata).await? {
                let record = LedgerRecord { metadata, version };
                return LedgerWriter::start(core, id, record, keys.digester, keys.master_key);
            }
            tracing::info!(ledger_id = id.get(), "a new ledger's id is taken; another one is tried");
        }
        let text = format!("create ledger: {IDS_TRIED_MAX} ids in a row were taken by ledgers that someone else made");
        Err(Error::new(ErrorKind::Metadata, text))
    }

    async fn allocate_id(&self) -> Result<LedgerId, Error> {
        let core = &self.core;
        match core.within(core.ledgers.allocate_id()).await {
            Some(Ok(id)) => Ok(id),
            Some(Err(error)) => Err(Error::with_source(ErrorKind::Metadata, "create ledger: allocate an id", error)),
            None => Err(Error::new(ErrorKind::Timeout, "create ledger: no id was given in time")),
        }
    }

    /// Writes a new ledger's record; `None` when someone else has the id.
    async fn create_record(&self, id: LedgerId, metadata: &LedgerMetadata) -> Result<Option<Version>, Error> {
        let core = &self.core;
        match core.within(core.ledgers.create(id, metadata)).await {
            Some(Ok(version)) => Ok(Some(version)),
            Some(Err(UpdateError::Conflict(_))) => Ok(None),
            Some(Err(UpdateError::NotDone(error))) => {
                let message = format!("create ledger {id}: write its metadata");
                Err(Error::with_source(ErrorKind::Metadata, message, error))
            }
            Some(Err(UpdateError::Unknown(error))) => {
                let message = format!("create ledger {id}: whether it exists is unknown");
                Err(Error::with_source(ErrorKind::Unknown, message, error))
            }
            None => Err(Error::new(ErrorKind::Unknown, format!("create ledger {id}: no answer in time"))),
        }
    }

    /// Opens a ledger for reading; `password`, when given, must be the ledger's.
    ///
    /// Cancel-safe, but a recovery that was dropped leaves the ledger in recovery, to be opened again.
    ///
    /// # Errors
    /// `NoSuchLedger` only by a proof of the metadata store; `Unauthorized`; `Unsupported` for metadata without digest type
    /// and password; what a recovery or the read of the confirmed end failed with.
    pub async fn open(&self, id: LedgerId, mode: OpenMode, password: Option<&Password>) -> Result<Opened, Error> {
        let (record, keys) = self.look_up(id, password).await?;
        if record.metadata.is_released() {
            return Ok(Opened::Cold(record));
        }
        let core = &self.core;
        let metadata = match mode {
            OpenMode::Recover if !record.metadata.is_closed() => recover(core, id, record, keys.clone()).await?,
            _ => record.metadata,
        };
        let last_confirmed = if metadata.is_closed() {
            metadata.last_entry()
        } else {
            core.read_last_confirmed(id, &metadata, &keys).await?
        };
        Ok(Opened::Hot(LedgerReader::new(core, id, metadata, keys, last_confirmed)))
    }

    /// Opens a ledger for reading up to an entry that the caller knows to be confirmed, from the ledger's writer, without asking
    /// the bookies: they are told of a confirmation only with the next entry.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`Client::open`], except those of reading the confirmed end.
    pub async fn open_confirmed(
        &self,
        id: LedgerId,
        password: Option<&Password>,
        last_confirmed: Option<EntryId>,
    ) -> Result<Opened, Error> {
        let (record, keys) = self.look_up(id, password).await?;
        if record.metadata.is_released() {
            return Ok(Opened::Cold(record));
        }
        // The end of a closed ledger is final, whatever the caller knew before.
        let last_confirmed = if record.metadata.is_closed() { record.metadata.last_entry() } else { last_confirmed };
        Ok(Opened::Hot(LedgerReader::new(&self.core, id, record.metadata, keys, last_confirmed)))
    }

    /// A ledger's record, as a proof, and what opens its entries.
    async fn look_up(&self, id: LedgerId, password: Option<&Password>) -> Result<(LedgerRecord, Keys), Error> {
        let Some(record) = self.core.read_record(id).await? else {
            return Err(Error::new(ErrorKind::NoSuchLedger, format!("open ledger {id}: it does not exist")));
        };
        Geometry::new(record.metadata.quorums())?;
        let keys = Keys::of(id, &record.metadata, password)?;
        Ok((record, keys))
    }

    /// Deletes a ledger's metadata; bookies and objects follow later, on their own. A ledger that does not exist is a success.
    ///
    /// Not cancel-safe: a dropped call may delete the ledger.
    ///
    /// # Errors
    /// `Metadata` when it surely was not deleted, `Unknown` when it may be.
    pub async fn delete(&self, id: LedgerId) -> Result<(), Error> {
        let message = || format!("delete ledger {id}");
        match self.core.within(self.core.ledgers.delete(id, None)).await {
            Some(Ok(())) => Ok(()),
            Some(Err(UpdateError::Unknown(error))) => Err(Error::with_source(ErrorKind::Unknown, message(), error)),
            Some(Err(error)) => Err(Error::with_source(ErrorKind::Metadata, message(), error)),
            None => Err(Error::new(ErrorKind::Unknown, format!("{}: no answer in time", message()))),
        }
    }

    /// Distinct writable bookies, each as likely as any other.
    async fn choose(&self, quorums: Quorums) -> Result<Vec<BookieId>, Error> {
        let core = &self.core;
        let listed = core.within(core.bookies.list()).await;
        let listed =
            listed.ok_or_else(|| Error::new(ErrorKind::Timeout, "create ledger: list bookies: no answer in time"))?;
        let listed =
            listed.map_err(|error| Error::with_source(ErrorKind::Metadata, "create ledger: list bookies", error))?;
        let registered = listed.iter().filter(|(id, ..)| !is_cold(id)).count();
        let mut writable: Vec<BookieId> =
            listed.into_iter().filter(|(id, _, writable)| *writable && !is_cold(id)).map(|(id, ..)| id).collect();
        let needed = quorums.ensemble() as usize;
        if writable.len() < needed {
            let message = format!(
                "create ledger: the ensemble needs {needed} writable bookies, there are {} ({registered} registered)",
                writable.len()
            );
            return Err(Error::new(ErrorKind::NotEnoughBookies, message));
        }
        for place in 0..needed {
            let rest = (writable.len() - place) as u64;
            let other = place + usize::try_from(core.rng.below(rest)).unwrap_or(0);
            writable.swap(place, other);
        }
        writable.truncate(needed);
        Ok(writable)
    }
}
