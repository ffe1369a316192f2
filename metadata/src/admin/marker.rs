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
const TAG_COPY: u8 = 6;
const TAG_CLOSING: u8 = 7;

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
    /// The copy that it belongs to, the same at the source and in the target, whatever run works on it: a source is left for one
    /// target. The run that began it, or where a release before this field wrote the marker, the run that it names.
    pub copy: Uuid,
    /// Whether the source of this copy is left or about to be: the target may be the only place then where the cluster can go on.
    pub closing: bool,
}

impl Marker {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = self.identity.name.as_ref().map_or("", |name| name.as_str());
        let record = RecordWriter::new()
            .number(TAG_WORK, self.work.number())
            .bytes(TAG_INSTANCE, self.identity.instance.as_str().as_bytes())
            .bytes(TAG_NAME, name.as_bytes())
            .number(TAG_BEGUN_MS, self.begun_ms)
            .uuid(TAG_RUN, self.run);
        let record = if self.copy == self.run { record } else { record.uuid(TAG_COPY, self.copy) };
        let record = match self.work {
            Work::Copy => record.number(TAG_CLOSING, u64::from(self.closing)),
            Work::Format | Work::Moved => record,
        };
        record.finish()
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
        let run = record.uuid(TAG_RUN)?;
        Ok(Self {
            work,
            identity: Identity { instance, name },
            begun_ms: record.number(TAG_BEGUN_MS)?,
            run,
            copy: if record.has(TAG_COPY) { record.uuid(TAG_COPY)? } else { run },
            // A release without the field did not say when it left the source.
            closing: work == Work::Copy && (!record.has(TAG_CLOSING) || record.number(TAG_CLOSING)? != 0),
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
        let run = Uuid::from_u128(7);
        let marker = Marker { work: Work::Copy, identity, begun_ms: 5, run, copy: run, closing: false };
        let hex = |value: &[u8]| value[..value.len() - 4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let of_work = |work: &str| {
            let begin = ["01", "01000800000000000000", work, "02000469642d31", "0300046c6f6773"].concat();
            [&begin, "0400080000000000000005", "05001000000000000000000000000000000007"].concat()
        };
        let value = marker.encode();
        assert_eq!(hex(&value), [&of_work("02"), "0700080000000000000000"].concat());
        assert_eq!(Marker::decode(&value).unwrap(), marker);
        let closing = Marker { copy: Uuid::from_u128(9), closing: true, ..marker.clone() };
        let value = closing.encode();
        let more = concat!("06001000000000000000000000000000000009", "0700080000000000000001");
        assert_eq!(hex(&value), [&of_work("02"), more].concat());
        assert_eq!(Marker::decode(&value).unwrap(), closing);
        let moved = Marker { work: Work::Moved, ..marker.clone() };
        assert_eq!(hex(&moved.encode()), of_work("03"));
        assert_eq!(Marker::decode(&moved.encode()).unwrap(), moved);
        let nameless = Marker { identity: Identity { name: None, ..marker.identity }, work: Work::Format, ..marker };
        assert_eq!(Marker::decode(&nameless.encode()).unwrap(), nameless);
    }

    /// Its run is its copy, and the source may be left.
    #[test]
    fn what_an_earlier_release_wrote_is_read_as_the_worse_case() {
        let value = RecordWriter::new()
            .number(TAG_WORK, Work::Copy.number())
            .bytes(TAG_INSTANCE, b"id-1")
            .bytes(TAG_NAME, b"")
            .number(TAG_BEGUN_MS, 5)
            .uuid(TAG_RUN, Uuid::from_u128(7))
            .finish();
        let marker = Marker::decode(&value).unwrap();
        assert_eq!((marker.copy, marker.closing), (Uuid::from_u128(7), true));
    }
}
