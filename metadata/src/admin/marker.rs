//! The marker of work that is under way: who began what, so that it is seen and can be gone on with.

use uuid::Uuid;

use crate::record::{RecordReader, RecordWriter};
use crate::{Error, ErrorKind, InstanceId, MetadataStore, Transaction, Version, layout};

use super::{Identity, step_failed};

const TAG_WORK: u8 = 1;
const TAG_INSTANCE: u8 = 2;
const TAG_NAME: u8 = 3;
const TAG_BEGUN_MS: u8 = 4;
const TAG_RUN: u8 = 5;

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The cluster is being removed from this store.
    Format,
    /// The cluster is being copied into this store.
    Copy,
    /// The cluster was copied from this store and lives elsewhere. This does not end, except by a format.
    Moved,
}

impl Work {
    fn number(self) -> u64 {
        match self {
            Self::Format => 1,
            Self::Copy => 2,
            Self::Moved => 3,
        }
    }
}

/// Work that was begun and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// What.
    pub work: Work,
    /// On which cluster.
    pub identity: Identity,
    /// When it was begun, in wall-clock milliseconds since 1970; kept when another run goes on with it.
    pub begun_ms: u64,
    /// The run that works on it: a random one each.
    pub run: Uuid,
}

impl Marker {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = self.identity.name.as_ref().map_or("", |name| name.as_str());
        RecordWriter::new()
            .number(TAG_WORK, self.work.number())
            .bytes(TAG_INSTANCE, self.identity.instance.as_str().as_bytes())
            .bytes(TAG_NAME, name.as_bytes())
            .number(TAG_BEGUN_MS, self.begun_ms)
            .uuid(TAG_RUN, self.run)
            .finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let record = RecordReader::open("maintenance marker", bytes)?;
        let work = match record.number(TAG_WORK)? {
            1 => Work::Format,
            2 => Work::Copy,
            3 => Work::Moved,
            other => {
                let text = format!("read maintenance marker: work {other} is unknown; a later release began it");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        let instance: InstanceId = record.text(TAG_INSTANCE)?.parse()?;
        let name = record.text(TAG_NAME)?;
        let name = if name.is_empty() { None } else { Some(name.parse()?) };
        Ok(Self {
            work,
            identity: Identity { instance, name },
            begun_ms: record.number(TAG_BEGUN_MS)?,
            run: record.uuid(TAG_RUN)?,
        })
    }

    /// The marker that stands in `store`, by proof.
    pub(super) async fn read(store: &dyn MetadataStore) -> Result<Option<(Self, Version)>, Error> {
        let Some(found) = store.get_quorum(&layout::maintenance_key()).await? else { return Ok(None) };
        Ok(Some((Self::decode(&found.value)?, found.version)))
    }

    /// Does `transaction`, which puts this marker; gives the version that later steps check.
    pub(super) async fn put_in(
        &self,
        what: &str,
        store: &dyn MetadataStore,
        transaction: Transaction,
    ) -> Result<Version, Error> {
        let outcome = store.commit(transaction).await;
        // Whatever the outcome says: our run's marker stands there only if the transaction was done.
        match (Self::read(store).await?, outcome) {
            (Some((found, version)), _) if found.run == self.run => Ok(version),
            (_, Err(error)) => Err(step_failed(what, error)),
            (_, Ok(_)) => Err(super::refused(format!("{what}: another run took over at once"))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let identity = Identity { instance: "id-1".parse().unwrap(), name: Some("logs".parse().unwrap()) };
        let marker = Marker { work: Work::Copy, identity, begun_ms: 5, run: Uuid::from_u128(7) };
        let value = marker.encode();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "01",
                "0100080000000000000002",
                "02000469642d31",
                "0300046c6f6773",
                "0400080000000000000005",
                "05001000000000000000000000000000000007",
                "38849b7a",
            )
        );
        assert_eq!(Marker::decode(&value).unwrap(), marker);
        let nameless = Marker { identity: Identity { name: None, ..marker.identity }, work: Work::Format, ..marker };
        assert_eq!(Marker::decode(&nameless.encode()).unwrap(), nameless);
    }
}
