//! The identity of a cluster.

use std::fmt;
use std::str::FromStr;

use common::rng::Rng;

use crate::{CommitError, Error, ErrorKind, Expect, LedgerLayout, MetadataStore, Transaction, layout};

/// Which cluster this is: made once, with it. Part of every object's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(String);

impl InstanceId {
    /// The text, as stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InstanceId {
    type Err = Error;

    /// 1 to 64 letters, digits, `-`, `_` or `.`: others cannot be part of an object's name.
    fn from_str(text: &str) -> Result<Self, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 64 || !text.chars().all(fits) {
            let shown: String = text.chars().take(80).collect();
            return Err(Error::new(ErrorKind::Damaged, format!("read instance id: {shown:?} is none")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceId({})", self.0)
    }
}

/// The cluster itself.
#[derive(Debug, Clone, Copy)]
pub struct Cluster;

impl Cluster {
    /// The identity of the cluster in `store`; makes one when there is none. However many call at once, all get the same.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the ledgers lie in a layout that this release does not read; those of the store.
    pub async fn init_or_open(store: &dyn MetadataStore, rng: &Rng) -> Result<InstanceId, Error> {
        if let Some(found) = Self::open(store).await? {
            Self::mark(store).await;
            return Ok(found);
        }
        let id = rng.uuid().to_string();
        let transaction = Transaction::new().put(layout::instance_key(), id.into_bytes(), Expect::Absent).put(
            layout::layout_key(),
            store.layouts()[0].value(),
            Expect::Absent,
        );
        let outcome = store.commit(transaction).await;
        // Whatever the outcome says, what stands there now is the identity.
        match (Self::open(store).await?, outcome) {
            (Some(id), _) => Ok(id),
            (None, Err(CommitError::NotDone(error) | CommitError::Unknown(error))) => Err(error),
            (None, Err(CommitError::Conflict { .. }) | Ok(_)) => {
                let found = crate::admin::state(store).await?;
                Err(Error::new(ErrorKind::Damaged, format!("open cluster: {}", found.no_cluster())))
            }
        }
    }

    /// [`MetadataStore::mark_cluster`], of which nothing of ours depends.
    pub(crate) async fn mark(store: &dyn MetadataStore) {
        if let Err(error) = store.mark_cluster().await {
            tracing::warn!(
                %error,
                "the cluster is not marked for other clients of its store: do not set up another one in the same place with their tools"
            );
        }
    }

    /// The identity of the cluster in `store`, by proof; `None` when there is no cluster yet.
    ///
    /// # Errors
    /// As [`Cluster::init_or_open`].
    pub async fn open(store: &dyn MetadataStore) -> Result<Option<InstanceId>, Error> {
        let Some(id) = Self::id(store).await? else { return Ok(None) };
        check_layout(store).await?;
        Ok(Some(id))
    }

    /// As [`Cluster::open`], with one request: for those who have opened the cluster before. How its ledgers lie is not looked at.
    ///
    /// # Errors
    /// Those of the store; [`ErrorKind::Damaged`] when what is there is no identity.
    pub async fn id(store: &dyn MetadataStore) -> Result<Option<InstanceId>, Error> {
        let Some(found) = store.get_quorum(&layout::instance_key()).await? else { return Ok(None) };
        let text = std::str::from_utf8(&found.value)
            .map_err(|error| Error::new(ErrorKind::Damaged, "read instance id").caused_by(error))?;
        Ok(Some(text.parse()?))
    }
}

async fn check_layout(store: &dyn MetadataStore) -> Result<(), Error> {
    let found = store.get_quorum(&layout::layout_key()).await?;
    match found {
        Some(found) if LedgerLayout::parse(&found.value).is_some_and(|found| store.layouts().contains(&found)) => {
            Ok(())
        }
        Some(found) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "open cluster: its ledgers are laid out as {:?}, this store reads only {:?}",
                String::from_utf8_lossy(&found.value),
                store.layouts()
            ),
        )),
        None => Err(Error::new(
            ErrorKind::Damaged,
            concat!(
                "open cluster: there is an INSTANCEID but no LAYOUT, so it is not certain how its ledgers lie. Pulsar makes clusters in etcd ",
                "that way: docs/operations/etcd.md says what to put"
            ),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
