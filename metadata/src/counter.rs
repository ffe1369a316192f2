//! Durable counters. Value: a record with field 1 = the highest number given so far.

use crate::record::{RecordReader, RecordWriter};
use crate::{CommitError, Error, ErrorKind, Expect, GivenIds, Key, MetadataStore, Versioned};

const TAG_VALUE: u8 = 1;

/// Losing a race means that someone else went on, so only a broken store comes near this.
const TRIES_MAX: usize = 10_000;

pub(crate) fn encode(value: u64) -> Vec<u8> {
    RecordWriter::new().number(TAG_VALUE, value).finish()
}

pub(crate) fn decode(bytes: &[u8]) -> Result<u64, Error> {
    RecordReader::open("counter", bytes)?.number(TAG_VALUE)
}

/// The number after `found`, and the condition under which it may be written.
pub(crate) fn step(found: Option<&Versioned>) -> Result<(u64, Expect), Error> {
    let (value, expect) = match found {
        None => (0, Expect::Absent),
        Some(found) => (decode(&found.value)?, Expect::At(found.version)),
    };
    let next = value.checked_add(1).ok_or_else(|| Error::new(ErrorKind::Refused, "step counter: it is at its end"))?;
    Ok((next, expect))
}

/// Gives a number that nobody gets twice. Numbers may be skipped: one whose outcome is unknown is left unused.
pub(crate) async fn next(store: &(impl MetadataStore + ?Sized), key: &Key) -> Result<u64, Error> {
    let mut found = store.get(key).await?;
    let mut unsure = None;
    for _ in 0..TRIES_MAX {
        let (number, expect) = step(found.as_ref())?;
        match store.put_if(key, encode(number).into(), expect).await {
            Ok(_) => return Ok(number),
            Err(CommitError::Conflict { found: now, .. }) => {
                found = match now {
                    Some(now) => Some(now),
                    None => store.get_quorum(key).await?,
                };
            }
            Err(CommitError::NotDone(error)) => return Err(error),
            Err(CommitError::Unknown(error)) => {
                if unsure.is_some() {
                    return Err(error);
                }
                unsure = Some(error);
                found = store.get_quorum(key).await?;
            }
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("step counter {key}: {TRIES_MAX} tries lost the race")))
}

/// The numbers given so far, by proof.
pub(crate) async fn given(store: &(impl MetadataStore + ?Sized), key: &Key) -> Result<GivenIds, Error> {
    let found = store.get_quorum(key).await?.map(|found| decode(&found.value)).transpose()?;
    Ok(found.map_or(GivenIds::none(), GivenIds::up_to))
}

/// Makes sure that no number up to `last` is given from here on.
pub(crate) async fn raise(store: &(impl MetadataStore + ?Sized), key: &Key, last: u64) -> Result<(), Error> {
    for _ in 0..TRIES_MAX {
        let found = store.get_quorum(key).await?;
        let value = found.as_ref().map_or(Ok(0), |found| decode(&found.value))?;
        if value >= last {
            return Ok(());
        }
        let expect = found.map_or(Expect::Absent, |found| Expect::At(found.version));
        match store.put_if(key, encode(last).into(), expect).await {
            Ok(_) => return Ok(()),
            Err(CommitError::Conflict { .. }) => {}
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("raise counter {key}: {TRIES_MAX} tries lost the race")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(decode(&encode(7)).unwrap(), 7);
        assert_eq!(&encode(7)[..12], b"\x01\x01\x00\x08\0\0\0\0\0\0\0\x07");
        assert!(decode(b"7").is_err());
    }
    #[tokio::test]
    async fn raised_numbers_are_never_given() {
        let (store, key) = (crate::MemoryStore::new(), Key::new("/n").unwrap());
        assert_eq!(given(&store, &key).await.unwrap(), GivenIds::none());
        raise(&store, &key, 0).await.unwrap();
        assert_eq!(next(&store, &key).await.unwrap(), 1);
        raise(&store, &key, 41).await.unwrap();
        raise(&store, &key, 7).await.unwrap();
        assert_eq!(given(&store, &key).await.unwrap(), GivenIds::up_to(41));
        assert_eq!(next(&store, &key).await.unwrap(), 42);
    }
}
