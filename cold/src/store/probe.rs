//! What a store grants and lacks, found out by doing it: each thing the cold tier does or may do, once, on objects of its own.
//!
//! The probes lie below `.thermocline-check/<uuid>/` and are removed at the end whatever was found; nothing else is touched. Each
//! finding is reported, none ends the probe, so that one run names all that is missing.

use std::time::Duration;

use bytes::Bytes;
use common::clock::Clock;
use object_store::{GetOptions, GetRange, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::ColdStore;
use super::check::PROBES;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of the probe that is written in one request.
const SMALL_BYTES: usize = 4_096;
/// Bytes of the probe's first part: the least that stores take.
const PART_BYTES: usize = 5 << 20;
/// Round trips that are timed.
const ROUND_TRIPS: usize = 9;
/// How far the clocks may be apart: times of objects are whole seconds on some stores.
const CLOCKS_APART_MAX_MS: i64 = 30_000;

/// Something a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Write an object in one request.
    Write,
    /// Refuse to write an object whose key is taken.
    CreateOnly,
    /// Say an object's size, and that an object is not there.
    LookUp,
    /// Read a range of an object.
    ReadRange,
    /// Read an object's last bytes without knowing its size.
    ReadTail,
    /// List keys, with what was just written.
    List,
    /// Write an object in parts.
    Multipart,
    /// Forget an upload in parts.
    AbortMultipart,
    /// Answer: the time a small read takes.
    RoundTrip,
    /// Have the same time as this machine.
    Clock,
    /// Remove an object.
    Delete,
}

impl Capability {
    /// All, in the order they are probed.
    pub const ALL: [Self; 11] = [
        Self::Write,
        Self::CreateOnly,
        Self::LookUp,
        Self::ReadRange,
        Self::ReadTail,
        Self::List,
        Self::Multipart,
        Self::AbortMultipart,
        Self::RoundTrip,
        Self::Clock,
        Self::Delete,
    ];

    /// For tables and scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::CreateOnly => "conditional write",
            Self::LookUp => "look up",
            Self::ReadRange => "read range",
            Self::ReadTail => "read tail",
            Self::List => "list",
            Self::Multipart => "multipart",
            Self::AbortMultipart => "abort multipart",
            Self::RoundTrip => "round trip",
            Self::Clock => "clock",
            Self::Delete => "delete",
        }
    }

    /// What Thermocline needs it for.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Write => "small ledgers become objects in one request",
            Self::CreateOnly => "a second net: no object is ever replaced, should two ever get one name",
            Self::LookUp => "proof that an object is whole before bookies let go of their copies",
            Self::ReadRange => "every cold read",
            Self::ReadTail => "nothing yet: sizes are recorded; other readers of Parquet use it",
            Self::List => "this check, and finding objects that no ledger names",
            Self::Multipart => "ledgers larger than a part",
            Self::AbortMultipart => "giving up an upload without paying for its parts",
            Self::RoundTrip => "the least a cold read takes",
            Self::Clock => "signatures are refused when clocks are 15 minutes apart",
            Self::Delete => "removing these probes; no other object is ever deleted by this version",
        }
    }

    /// Whether Thermocline cannot work without it.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::Write | Self::LookUp | Self::ReadRange | Self::List | Self::Multipart)
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It works; with what was measured, if anything was.
    Works(String),
    /// It does not, and why that is.
    Lacks(String),
    /// It was not tried, and why not.
    Skipped(String),
}

impl Finding {
    /// Whether it works.
    pub fn works(&self) -> bool {
        matches!(self, Self::Works(_))
    }

    /// The words that go with it.
    pub fn detail(&self) -> &str {
        match self {
            Self::Works(detail) | Self::Lacks(detail) | Self::Skipped(detail) => detail,
        }
    }
}

/// What a store grants and lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReport {
    /// The store, without secrets.
    pub store: String,
    /// One finding for each capability, in the order of [`Capability::ALL`].
    pub findings: Vec<(Capability, Finding)>,
    /// Half of the small reads took less.
    pub round_trip_p50: Option<Duration>,
    /// How far the store's clock is ahead of ours.
    pub clock_ahead_ms: Option<i64>,
    /// Probes that could not be removed. Harmless, and nobody's but this check's.
    pub left_behind: Vec<String>,
}

impl StoreReport {
    /// Whether everything that is needed works.
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|(capability, finding)| !capability.is_needed() || finding.works())
    }
}

impl ColdStore {
    /// Finds out what this store grants and lacks. `begin` is told of each capability before it is probed.
    ///
    /// Dropped half-way, it leaves its probes behind.
    pub async fn probe(&self, clock: &Clock, mut begin: impl FnMut(Capability)) -> StoreReport {
        let mut probe = Probe {
            store: self,
            clock,
            folder: format!("{PROBES}/{}", self.inner.rng.uuid()),
            small: Vec::new(),
            written_ms: None,
            written: Vec::new(),
            round_trip_p50: None,
            clock_ahead_ms: None,
            left_behind: Vec::new(),
        };
        let mut findings: Vec<(Capability, Finding)> = Vec::new();
        for capability in Capability::ALL {
            begin(capability);
            let writable = findings.first().is_none_or(|(_, finding)| finding.works());
            let finding = if writable || capability == Capability::Delete {
                // Boxed: the steps are many and each small.
                Box::pin(probe.find(capability)).await
            } else {
                Finding::Skipped("nothing could be written".to_owned())
            };
            findings.push((capability, finding));
        }
        StoreReport {
            store: self.name().to_owned(),
            findings,
            round_trip_p50: probe.round_trip_p50,
            clock_ahead_ms: probe.clock_ahead_ms,
            left_behind: probe.left_behind,
        }
    }
}

struct Probe<'a> {
    store: &'a ColdStore,
    clock: &'a Clock,
    folder: String,
    /// What the small probe holds.
    small: Vec<u8>,
    /// Our time before and after the small probe was written.
    written_ms: Option<(u64, u64)>,
    /// All that may be there, to be removed.
    written: Vec<String>,
    round_trip_p50: Option<Duration>,
    clock_ahead_ms: Option<i64>,
    left_behind: Vec<String>,
}

impl Probe<'_> {
    async fn find(&mut self, capability: Capability) -> Finding {
        let found = match capability {
            Capability::Write => self.write().await,
            Capability::CreateOnly => self.create_only().await,
            Capability::LookUp => self.look_up().await,
            Capability::ReadRange => self.read_range().await,
            Capability::ReadTail => self.read_tail().await,
            Capability::List => self.list().await,
            Capability::Multipart => self.multipart().await,
            Capability::AbortMultipart => self.abort_multipart().await,
            Capability::RoundTrip => self.round_trip().await,
            Capability::Clock => self.compare_clocks().await,
            Capability::Delete => self.delete().await,
        };
        found.unwrap_or_else(|error| Finding::Lacks(explain(&error)))
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn noise(&self, bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        self.store.inner.rng.fill(&mut noise);
        noise
    }

    async fn create(&mut self, name: &str, body: &[u8]) -> Result<()> {
        let key = self.key(name);
        let path = self.store.path(&key)?;
        if !self.written.contains(&key) {
            self.written.push(key.clone());
        }
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.store.inner.store.put_opts(&path, PutPayload::from(body.to_vec()), options);
        self.store.request(&key, "write", put).await.map(drop)
    }

    async fn write(&mut self) -> Result<Finding> {
        let body = self.noise(SMALL_BYTES);
        let before = self.clock.wall_ms();
        self.create("object", &body).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let what = "the bucket or directory does not exist: create it, or correct the URL";
                Error::with_source(ErrorKind::Config, what, error)
            }
            _ => error,
        })?;
        self.written_ms = Some((before, self.clock.wall_ms()));
        self.small = body;
        works("")
    }

    async fn create_only(&mut self) -> Result<Finding> {
        let other = self.noise(SMALL_BYTES);
        match self.create("object", &other).await {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = self.read(0..SMALL_BYTES as u64).await?;
                if found != self.small {
                    return lacks("it refused the second write of a key, and made it all the same");
                }
                works("the second write of a key is refused")
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.small = other;
                lacks(
                    "IGNORED: the second write of a key replaced the first, though it asked for a new object (If-None-Match: *)",
                )
            }
        }
    }

    async fn look_up(&mut self) -> Result<Finding> {
        let found = self.store.head(&self.key("object")).await?;
        if found.bytes != SMALL_BYTES as u64 {
            return lacks(format!("it says an object of {SMALL_BYTES} bytes has {}", found.bytes));
        }
        match self.store.head(&self.key("absent")).await {
            Err(error) if error.kind() == ErrorKind::NotFound => works("present and absent are told apart"),
            Err(error) if error.kind() == ErrorKind::Denied => lacks(
                "it says permission denied of an object that is not there: these credentials also need the right to list the bucket (s3:ListBucket)",
            ),
            Err(error) => Err(error),
            Ok(_) => lacks("it finds an object that was never written"),
        }
    }

    async fn read(&self, range: std::ops::Range<u64>) -> Result<Bytes> {
        self.store.get_range(&self.key("object"), range, Some(SMALL_BYTES as u64)).await
    }

    async fn read_range(&mut self) -> Result<Finding> {
        let found = self.read(1_000..3_000).await?;
        if found != self.small[1_000..3_000] { lacks("it gave other bytes than were written") } else { works("") }
    }

    async fn read_tail(&mut self) -> Result<Finding> {
        let key = self.key("object");
        let path = self.store.path(&key)?;
        let options = GetOptions { range: Some(GetRange::Suffix(100)), ..GetOptions::default() };
        let read = async { self.store.inner.store.get_opts(&path, options).await?.bytes().await };
        let found = self.store.request(&key, "read the tail of", read).await?;
        if found != self.small[SMALL_BYTES - 100..] {
            return lacks(format!("asked for the last 100 bytes it gave {} others", found.len()));
        }
        works("")
    }

    async fn list(&mut self) -> Result<Finding> {
        let listed = self.store.list(&self.folder, None, 10).await?;
        if listed.iter().any(|found| found.key == self.key("object")) {
            return works("what was just written is listed");
        }
        lacks("an object just written is not listed: the lists of this store are late")
    }

    async fn multipart(&mut self) -> Result<Finding> {
        let key = self.key("parts");
        let path = self.store.path(&key)?;
        self.written.push(key.clone());
        let (first, second) = (Bytes::from(self.noise(PART_BYTES)), Bytes::from(self.noise(1_000)));
        let begin = self.store.inner.store.put_multipart(&path);
        let mut upload = self.store.request(&key, "begin to upload", begin).await?;
        let sent = async {
            for part in [&first, &second] {
                let part = upload.put_part(PutPayload::from(part.clone()));
                self.store.request(&key, "upload a part of", part).await?;
            }
            self.store.request(&key, "join the parts of", upload.complete()).await.map(drop)
        };
        if let Err(error) = sent.await {
            // Only asks the store to forget the parts.
            let _ = self.store.request(&key, "stop uploading", upload.abort()).await;
            return Err(error);
        }
        let bytes = (PART_BYTES + second.len()) as u64;
        let seam = PART_BYTES as u64 - 10..PART_BYTES as u64 + 10;
        let found = self.store.get_range(&key, seam, Some(bytes)).await?;
        if found[..10] != first[PART_BYTES - 10..] || found[10..] != second[..10] {
            return lacks("parts were joined in another order, or changed");
        }
        works("two parts became one object")
    }

    async fn abort_multipart(&mut self) -> Result<Finding> {
        let key = self.key("aborted");
        let path = self.store.path(&key)?;
        let begin = self.store.inner.store.put_multipart(&path);
        let mut upload = self.store.request(&key, "begin to upload", begin).await?;
        let part = upload.put_part(PutPayload::from(self.noise(1_000)));
        self.store.request(&key, "upload a part of", part).await?;
        self.store.request(&key, "stop uploading", upload.abort()).await?;
        match self.store.head(&key).await {
            Err(error) if error.kind() == ErrorKind::NotFound => works(""),
            Err(error) => Err(error),
            Ok(_) => {
                self.written.push(key);
                lacks("an upload that was given up became an object")
            }
        }
    }

    async fn round_trip(&mut self) -> Result<Finding> {
        let mut times = Vec::new();
        for _ in 0..ROUND_TRIPS {
            let begun = self.clock.now();
            self.read(0..100).await?;
            times.push(self.clock.now() - begun);
        }
        times.sort();
        let (median, slowest) = (times[ROUND_TRIPS / 2], times[ROUND_TRIPS - 1]);
        self.round_trip_p50 = Some(median);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        works(format!("p50 {:.1} ms, slowest of {ROUND_TRIPS} {:.1} ms", ms(median), ms(slowest)))
    }

    async fn compare_clocks(&mut self) -> Result<Finding> {
        let (Some((before, after)), Ok(found)) = (self.written_ms, self.store.head(&self.key("object")).await) else {
            return Ok(Finding::Skipped("the object's time is not known".to_owned()));
        };
        let ahead = ahead_ms(before, after, found.modified_ms);
        self.clock_ahead_ms = Some(ahead);
        let apart = Duration::from_millis(ahead.unsigned_abs()).as_secs_f64();
        if ahead.abs() > CLOCKS_APART_MAX_MS {
            let side = if ahead > 0 { "ahead of" } else { "behind" };
            return lacks(format!("the store's clock is {apart:.0} s {side} this machine's: set the clocks by NTP"));
        }
        works(format!("at most {:.0} s apart", apart.ceil()))
    }

    async fn delete(&mut self) -> Result<Finding> {
        let mut refusal = None;
        for key in &self.written {
            let path = self.store.path(key)?;
            let deleted = self.store.request(key, "remove", self.store.inner.store.delete(&path)).await;
            let gone = match deleted {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => match self.store.head(key).await {
                    // Where it cannot be looked up, the store's word that it is removed must do.
                    Err(_) => Ok(()),
                    Ok(_) => Err(Error::new(ErrorKind::Damaged, "an object that was removed is still there")),
                },
            };
            if let Err(error) = gone {
                // Of a probe that was never written, or is known to be absent, nothing is left.
                let absent = self.store.head(key).await.is_err_and(|error| error.kind() == ErrorKind::NotFound);
                if !absent && !self.small.is_empty() {
                    self.left_behind.push(key.clone());
                }
                refusal = refusal.or(Some(error));
            }
        }
        match refusal {
            Some(error) => Err(error),
            None if self.small.is_empty() => Ok(Finding::Skipped("nothing could be written".to_owned())),
            None => works("the probes are gone"),
        }
    }
}

fn works(detail: impl Into<String>) -> Result<Finding> {
    Ok(Finding::Works(detail.into()))
}

fn lacks(detail: impl Into<String>) -> Result<Finding> {
    Ok(Finding::Lacks(detail.into()))
}

/// The error and its first cause, which has the store's own words, on one line of bearable length.
fn explain(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let line: String = format!("{error}{cause}").split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// How far the clock that said `modified` is ahead of the one that said `before` and `after`. Zero when it lies between them, also
/// when it was cut to whole seconds.
fn ahead_ms(before: u64, after: u64, modified: i64) -> i64 {
    let (before, after) = (i64::try_from(before).unwrap_or(i64::MAX), i64::try_from(after).unwrap_or(i64::MAX));
    let earliest = if modified % 1_000 == 0 { before / 1_000 * 1_000 } else { before };
    if modified < earliest {
        modified - earliest
    } else if modified > after {
        modified - after
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_with_whole_seconds_in_mind() {
        for (modified, expected) in
            [(10_500, 0), (10_000, 0), (11_000, 0), (12_000, 800), (9_000, -1_000), (10_399, -1), (71_200, 60_000)]
        {
            assert_eq!(ahead_ms(10_400, 11_200, modified), expected, "{modified}");
        }
    }

    #[test]
    fn every_capability_is_probed_once_and_has_a_purpose() {
        let mut names: Vec<_> = Capability::ALL.iter().map(|capability| capability.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Capability::ALL.len());
        assert!(Capability::ALL.iter().all(|capability| !capability.purpose().is_empty()));
        assert_eq!(Capability::ALL[0], Capability::Write, "all else needs what it wrote");
        assert_eq!(Capability::ALL.last(), Some(&Capability::Delete), "it removes what all others wrote");
    }
}
