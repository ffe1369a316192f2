//! What bookies ask to be released: the ledgers that keep the oldest segments of a bookie that is short of space.
//!
//! A request is a wish and never a proof: whoever releases decides by the ledger's metadata alone. A bookie holds its key under the
//! lease of its registration, so that nobody hurries for one that is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use ledger::{BookieId, LedgerId};

use crate::record::{RecordReader, RecordWriter};
use crate::{CommitError, Error, ErrorKind, Expect, LeaseId, MetadataStore, Transaction, layout};

const TAG_LEDGERS: u8 = 1;
const LEDGER_BYTES: usize = 8;
const LIST_PAGE: usize = 500;

/// The requests of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct ReleaseRequests {
    store: Arc<dyn MetadataStore>,
}

impl ReleaseRequests {
    /// Most ledgers that one bookie asks for at a time: 8 KiB.
    pub const LEDGERS_MAX: usize = 1024;
    /// Most ledgers that one listing gives, of all bookies together.
    pub const LISTED_MAX: usize = 16 * 1024;

    /// The requests in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self { store }
    }

    /// Asks for these ledgers, in the place of those that the bookie asked for before, for as long as `lease` lives; for none, when
    /// there are none. May be repeated, also after an unknown outcome.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for more than [`ReleaseRequests::LEDGERS_MAX`]; [`ErrorKind::LeaseGone`]; those of the store.
    pub async fn put(&self, bookie: &BookieId, ledgers: &[LedgerId], lease: LeaseId) -> Result<(), Error> {
        if ledgers.len() > Self::LEDGERS_MAX {
            let text = format!("ask for the release of {} ledgers: at most {}", ledgers.len(), Self::LEDGERS_MAX);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let key = layout::release_request_key(bookie);
        let transaction = match ledgers.is_empty() {
            true => Transaction::new().delete(key, Expect::Any),
            false => Transaction::new().put_leased(key, encode(ledgers), Expect::Any, lease),
        };
        match self.store.commit(transaction).await {
            Ok(_) => Ok(()),
            Err(CommitError::NotDone(error) | CommitError::Unknown(error)) => Err(error),
            Err(CommitError::Conflict { .. }) => {
                Err(Error::new(ErrorKind::Damaged, "ask for releases: a change without a condition met a conflict"))
            }
        }
    }

    /// The ledgers that any bookie asks for, at most [`ReleaseRequests::LISTED_MAX`]. A hint. A request that cannot be read is
    /// logged and left out.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self) -> Result<BTreeSet<LedgerId>, Error> {
        let root = layout::release_requests_root();
        let mut ledgers = BTreeSet::new();
        let mut after = None;
        loop {
            let rows = self.store.list(&root, after.as_ref(), LIST_PAGE).await?;
            let Some((last, _)) = rows.last() else { return Ok(ledgers) };
            after = Some(last.clone());
            for (key, found) in rows {
                match decode(&found.value) {
                    Ok(asked) => ledgers.extend(asked),
                    Err(error) => {
                        tracing::error!(%key, error = &error as &dyn std::error::Error, "request for releases left out");
                    }
                }
                while ledgers.len() > Self::LISTED_MAX {
                    ledgers.pop_last();
                }
            }
        }
    }
}

fn encode(ledgers: &[LedgerId]) -> Vec<u8> {
    let ids: Vec<u8> = ledgers.iter().flat_map(|ledger| ledger.get().to_be_bytes()).collect();
    RecordWriter::new().bytes(TAG_LEDGERS, &ids).finish()
}

fn decode(value: &[u8]) -> Result<Vec<LedgerId>, Error> {
    let record = RecordReader::open("release request", value)?;
    let refuse = |fault: &str| Error::new(ErrorKind::Damaged, format!("read release request: {fault}"));
    let (ids, rest) = record.slice(TAG_LEDGERS)?.as_chunks::<LEDGER_BYTES>();
    if !rest.is_empty() {
        return Err(refuse("the last ledger is cut short"));
    }
    if ids.len() > ReleaseRequests::LEDGERS_MAX {
        return Err(refuse("it names too many ledgers"));
    }
    let ledgers: Option<Vec<LedgerId>> = ids.iter().map(|id| LedgerId::new(u64::from_be_bytes(*id))).collect();
    ledgers.ok_or_else(|| refuse("it names what is no ledger"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::MemoryStore;

    fn ledgers(ids: impl IntoIterator<Item = u64>) -> Vec<LedgerId> {
        ids.into_iter().map(|id| LedgerId::new(id).unwrap()).collect()
    }

    #[test]
    fn golden() {
        let encoded = encode(&ledgers([7, 0x0102_0304]));
        let text: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "0101001000000000000000070000000001020304789a8c88");
        assert_eq!(decode(&encoded).unwrap(), ledgers([7, 0x0102_0304]));
        let bookie = BookieId::new("10.0.0.1:3181").unwrap();
        let key = layout::release_request_key(&bookie);
        assert_eq!(key.as_str(), "/thermocline/release-requests/10.0.0.1:3181");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let record = |ids: &[u8]| RecordWriter::new().bytes(TAG_LEDGERS, ids).finish();
        for bad in [record(&[0; 9]), record(&[0xff; 8]), record(&vec![0; 8 * 1025]), vec![], b"not ours".to_vec()] {
            assert_eq!(decode(&bad).unwrap_err().kind(), ErrorKind::Damaged, "{bad:?}");
        }
        assert!(decode(&RecordWriter::new().finish()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_stands_until_it_is_taken_back_or_its_bookie_is_gone() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let requests = ReleaseRequests::new(store.clone());
        let (first, second) = (BookieId::new("b1:3181").unwrap(), BookieId::new("b2:3181").unwrap());
        let ttl = Duration::from_secs(10);
        let (lease, other) = (store.grant_lease(ttl).await.unwrap(), store.grant_lease(ttl).await.unwrap());
        let listed = async || requests.list().await.unwrap().into_iter().collect::<Vec<_>>();
        requests.put(&first, &ledgers([5, 3]), lease).await.unwrap();
        requests.put(&second, &ledgers([3, 9]), other).await.unwrap();
        assert_eq!(listed().await, ledgers([3, 5, 9]));
        requests.put(&first, &ledgers([4]), lease).await.unwrap();
        assert_eq!(listed().await, ledgers([3, 4, 9]));
        requests.put(&first, &[], lease).await.unwrap();
        requests.put(&first, &[], lease).await.unwrap();
        assert_eq!(listed().await, ledgers([3, 9]));
        store.revoke(other).await.unwrap();
        assert_eq!(listed().await, []);
        let many = ledgers(0..=ReleaseRequests::LEDGERS_MAX as u64);
        assert_eq!(requests.put(&first, &many, lease).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(requests.put(&second, &many[1..], other).await.unwrap_err().kind(), ErrorKind::LeaseGone);
    }

    #[tokio::test]
    async fn a_request_that_cannot_be_read_hides_no_other_and_listings_are_bounded() {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        let requests = ReleaseRequests::new(store.clone());
        let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
        let key = layout::release_requests_root().join("a").unwrap();
        store.commit(Transaction::new().put(key, b"rubbish".to_vec(), Expect::Absent)).await.unwrap();
        for bookie in 0..20_u64 {
            let ids = ledgers((0..1024).map(|ledger| 20_479 - (bookie * 1024 + ledger)));
            let bookie = BookieId::new(&format!("b{bookie}:3181")).unwrap();
            requests.put(&bookie, &ids, lease).await.unwrap();
        }
        let listed: Vec<LedgerId> = requests.list().await.unwrap().into_iter().collect();
        assert_eq!(listed, ledgers(0..16 * 1024), "the lowest, which are the oldest");
    }
}
