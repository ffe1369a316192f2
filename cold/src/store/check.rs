use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::ColdStore;
use crate::error::{Error, ErrorKind, Result};

/// Where probes are put.
pub(crate) const PROBES: &str = ".thermocline-check";

impl ColdStore {
    /// Finds out whether this store can be used, by doing once what the cold tier does: writes a small object under a fresh key
    /// below `.thermocline-check/`, reads a range of it, lists it, and removes that one object.
    ///
    /// # Errors
    /// The first step that does not work, in a sentence that says what to do.
    pub async fn check(&self) -> Result<()> {
        let key = format!("{PROBES}/{}", self.inner.rng.uuid());
        let path = self.path(&key)?;
        let body = format!("probe of {key}\n");
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.inner.store.put_opts(&path, PutPayload::from(body.clone()), options);
        self.request(&key, "write", put).await.map_err(|error| self.explain("write to it", error))?;
        let checked = self.check_probe(&key, &body).await;
        // The probe is ours and nobody names it, so it goes whatever was found; one that stays is small and harmless.
        let removed = self.request(&key, "remove", self.inner.store.delete(&path)).await;
        checked?;
        removed.map_err(|error| self.explain("remove its own probe", error))
    }

    async fn check_probe(&self, key: &str, body: &str) -> Result<()> {
        let bytes = body.len() as u64;
        let part = self
            .get_range(key, 1..bytes, Some(bytes))
            .await
            .map_err(|error| self.explain("read a range of an object", error))?;
        if part != body.as_bytes()[1..] {
            let what = format!("use object store {}: it gave back other bytes than were written", self.name());
            return Err(Error::new(ErrorKind::Damaged, what));
        }
        let listed = self.list(PROBES, None, 1_024).await.map_err(|error| self.explain("list objects", error))?;
        if !listed.iter().any(|found| found.key == key) && listed.len() < 1_024 {
            let what = format!(
                "use object store {}: an object just written is not listed; a store with strongly consistent lists is needed",
                self.name()
            );
            return Err(Error::new(ErrorKind::Config, what));
        }
        Ok(())
    }

    pub(super) fn explain(&self, doing: &str, error: Error) -> Error {
        let (kind, hint) = match error.kind() {
            ErrorKind::Denied => {
                (ErrorKind::Denied, "permission denied: give this process or its credentials the right to do so")
            }
            ErrorKind::NotFound => {
                (ErrorKind::Config, "the bucket or directory does not exist: create it, or correct the URL")
            }
            ErrorKind::Transient => (ErrorKind::Transient, "no good answer: check endpoint, region and network"),
            // The cause says what to do.
            ErrorKind::Config => (ErrorKind::Config, "the settings do not fit"),
            kind => (kind, "it does not work"),
        };
        Error::with_source(kind, format!("use object store {}: cannot {doing}, {hint}", self.name()), error)
    }
}
