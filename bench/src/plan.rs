use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Url;

use crate::timing::now;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Everything, minutes.
    Full,
    /// A named subset, within 50 seconds.
    Quick,
    /// The least that gives every row of the subset: shows that the bench works, its numbers mean nothing.
    Smoke,
}

impl Scale {
    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Quick => "quick",
            Self::Smoke => "smoke",
        }
    }

    /// The value for this scale.
    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}

/// What happens while it happens: called with a short sentence at each step.
pub type Progress = dyn Fn(&str) + Send + Sync;

/// What a bench is given.
pub struct Plan {
    /// A directory of its own, on the disk to measure. The bench empties what it made; the caller removes the directory.
    pub scratch: PathBuf,
    /// An object store to measure instead of the one in this process.
    pub store: Option<Url>,
    /// How much.
    pub scale: Scale,
    /// Told at each step.
    pub progress: Arc<Progress>,
    /// When no further repetition begins; the first always does.
    pub(crate) until: Instant,
}

/// A bench that could not be carried out.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct Error {
    what: String,
    cause: String,
}

/// The outcome of a part of a bench.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(what: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self { what: what.into(), cause: cause.to_string() }
    }

    /// For `map_err`.
    pub(crate) fn at<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |cause| Self::new(what, cause)
    }
}

impl Plan {
    /// A plan whose time starts now.
    pub fn new(scratch: PathBuf, scale: Scale, progress: Box<Progress>) -> Self {
        let budget = scale.pick(Duration::from_secs(3600), Duration::from_secs(36), Duration::from_secs(8));
        Self { scratch, store: None, scale, progress: progress.into(), until: now() + budget }
    }

    /// The plan of a part of a bench, which has so much time of its own where the scale is quick.
    pub(crate) fn part(&self, quick: Duration) -> Self {
        let until = self.scale.pick(self.until, now() + quick, self.until);
        let Self { scratch, store, scale, progress, .. } = self;
        Self { scratch: scratch.clone(), store: store.clone(), scale: *scale, progress: progress.clone(), until }
    }

    /// Whether another repetition may begin, `done` being how many there are.
    pub(crate) fn go_on(&self, done: usize, wanted: usize) -> bool {
        done < wanted && (done == 0 || now() < self.until)
    }

    pub(crate) fn say(&self, step: impl AsRef<str>) {
        (self.progress)(step.as_ref());
    }
}
