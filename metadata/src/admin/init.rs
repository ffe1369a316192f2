//! What a store holds, and making a cluster in one that holds nothing.

use std::fmt;

use common::rng::Rng;

use super::{ClusterName, Marker, Work, refused, step_failed};
use crate::{Cluster, Error, Expect, InstanceId, MetadataStore, Transaction, Version, layout};

/// Which cluster, for machines and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its identity.
    pub instance: InstanceId,
    /// Its name, if it was given one.
    pub name: Option<ClusterName>,
}

impl Identity {
    /// What an administrator types to confirm: the name, or the identity of a cluster without one.
    #[must_use]
    pub fn to_type(&self) -> &str {
        self.name.as_ref().map_or(self.instance.as_str(), ClusterName::as_str)
    }
}

/// `logs-eu (5f2c…)`, or the identity alone.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.instance),
            None => write!(f, "{} (without a name)", self.instance),
        }
    }
}

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// No cluster. Other keys there may be.
    Empty,
    /// A cluster.
    Cluster(Identity),
    /// Work on a cluster that was begun and has not ended. The version is the marker's.
    Unfinished(Marker, Version),
    /// A LAYOUT, no INSTANCEID and no word of who took it.
    Headless,
}

impl State {
    /// Why there is no cluster to work on, as a sentence that says what to do.
    #[must_use]
    pub fn no_cluster(&self) -> String {
        match self {
            Self::Empty => "it holds no cluster; make one with `thermocline cluster init`".to_owned(),
            Self::Cluster(identity) => format!("it holds the cluster {identity}"),
            Self::Unfinished(Marker { work: Work::Format, identity, .. }, _) => {
                format!(
                    "the removal of cluster {identity} was begun and has not ended: run `thermocline cluster format` again"
                )
            }
            Self::Unfinished(Marker { work: Work::Copy, identity, closing: true, .. }, _) => format!(
                "the copy of cluster {identity} into it was at its last steps and has not ended: run the same `thermocline metadata \
                 copy` again. The source may be left already, and then the cluster goes on here or nowhere. Only where `thermocline \
                 cluster show` still finds it at the source, give the copy up with `thermocline cluster format --force`"
            ),
            Self::Unfinished(Marker { work: Work::Copy, identity, .. }, _) => format!(
                "the copy of cluster {identity} into it was begun and has not ended: run the same `thermocline metadata copy` \
                 again, or give it up with `thermocline cluster format`"
            ),
            Self::Unfinished(Marker { work: Work::Moved, identity, .. }, _) => format!(
                "cluster {identity} was moved from here by `thermocline metadata copy`: start every role with the metadata it was \
                 copied to. Once it is open there, what is left here can be removed with `thermocline cluster format`"
            ),
            Self::Headless => {
                "it has a LAYOUT but no INSTANCEID: the cluster's identity is lost. Put back the INSTANCEID that \
                               the bookies' VERSION files name"
                    .to_owned()
            }
        }
    }
}

/// How the cluster's ledgers are laid out, as BookKeeper names it; `None` without a LAYOUT that has the usual two lines.
///
/// # Errors
/// Those of the store.
pub async fn layout_name(store: &dyn MetadataStore) -> Result<Option<String>, Error> {
    let found = store.get_quorum(&layout::layout_key()).await?;
    Ok(found.and_then(|row| Some(std::str::from_utf8(&row.value).ok()?.lines().nth(1)?.trim_end().to_owned())))
}

/// What `store` holds, by proof.
///
/// # Errors
/// Those of the store; [`crate::ErrorKind::Unsupported`] for a layout that this release does not read; [`crate::ErrorKind::Damaged`].
pub async fn state(store: &dyn MetadataStore) -> Result<State, Error> {
    if let Some((marker, version)) = Marker::read(store).await? {
        return Ok(State::Unfinished(marker, version));
    }
    if let Some(instance) = Cluster::open(store).await? {
        return Ok(State::Cluster(Identity { instance, name: ClusterName::read(store).await? }));
    }
    let has_layout = store.get_quorum(&layout::layout_key()).await?.is_some();
    Ok(if has_layout { State::Headless } else { State::Empty })
}

/// Makes a cluster in one transaction.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] with what was found, when the store holds one or the rest of one; those of the store.
pub async fn init(store: &dyn MetadataStore, rng: &Rng, name: Option<&ClusterName>) -> Result<Identity, Error> {
    let found = state(store).await?;
    match found {
        State::Empty => {}
        State::Cluster(identity) => {
            Cluster::mark(store).await;
            return Err(refused(format!("there is a cluster already: {identity}")));
        }
        other => return Err(refused(other.no_cluster())),
    }
    let instance: InstanceId = rng.uuid().to_string().parse()?;
    let mut transaction = Transaction::new()
        .put(layout::instance_key(), instance.as_str().to_owned().into_bytes(), Expect::Absent)
        .put(layout::layout_key(), store.layouts()[0].value(), Expect::Absent)
        .check(layout::maintenance_key(), Expect::Absent);
    if let Some(name) = name {
        transaction = transaction.put(layout::name_key(), name.encode(), Expect::Absent);
    }
    let outcome = store.commit(transaction).await;
    match (state(store).await?, outcome) {
        // Ours, whatever became of the answer.
        (State::Cluster(identity), _) if identity.instance == instance => Ok(identity),
        (State::Cluster(identity), _) => {
            Err(refused(format!("someone else made a cluster at the same time: {identity}")))
        }
        (_, Err(error)) => Err(step_failed("init cluster", error)),
        (other, Ok(_)) => Err(refused(format!("the new cluster was removed at once: {}", other.no_cluster()))),
    }
}
