//! Ledger ids as the other clients of the layout make them.
//!
//! Ours: a counter of ours. BookKeeper's driver: 128 keys, each of them a counter by the number of times that it was put; the key is the
//! highest byte of the id. Pulsar's driver: the same with one key for short ids, and one for each high half of long ones. Ids may be
//! skipped, so every call may be repeated; a number is never given twice, because a key that is put is never removed.

use std::sync::atomic::Ordering;

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures::stream::{self, TryStreamExt};

use super::links::From;
use super::{EtcdStore, Shared};
use crate::ledger_layout::SHORT_END;
use crate::{Error, ErrorKind, GivenIds, LedgerLayout, counter, layout};

/// How many keys BookKeeper's driver counts with.
const BUCKETS: u64 = 128;
const BUCKET_SHIFT: u32 = 56;
/// One behind the last number of a bucket.
const BUCKET_END: u64 = 1 << BUCKET_SHIFT;
/// A high half that is full is followed by the next.
const HIGH_TRIES_MAX: usize = 4;

/// The most puts by which [`skip`] moves the counters of BookKeeper's driver: some minutes, and some hundred bytes each until etcd
/// compacts.
const SKIPPED_MAX: u64 = 1_000_000;
/// How many of them are under way.
const SKIPS_AT_ONCE: usize = 64;

/// The next id.
pub(super) async fn allocate(shared: &Shared, store: &EtcdStore) -> Result<u64, Error> {
    match shared.layout().await? {
        LedgerLayout::Etcd => bucket(shared).await,
        LedgerLayout::Hierarchical => sequence(shared).await,
        _ => counter::next(store, &layout::idgen_key()).await,
    }
}

/// The ids that were given, to whatever client.
pub(super) async fn given(shared: &Shared, store: &EtcdStore) -> Result<GivenIds, Error> {
    match shared.layout().await? {
        LedgerLayout::Etcd => {
            let counts = counts(shared).await?;
            let first = |bucket: u64| bucket << BUCKET_SHIFT;
            Ok(GivenIds::of((0..).zip(counts).map(|(bucket, count)| first(bucket) + 1..=first(bucket) + count)))
        }
        // Sequences only go up, and long ids are higher than short ones.
        LedgerLayout::Hierarchical => Ok(GivenIds::up_to(sequence(shared).await?)),
        _ => counter::given(store, &layout::idgen_key()).await,
    }
}

/// Makes ids that come from here on others than `given`.
pub(super) async fn skip(shared: &Shared, store: &EtcdStore, given: &GivenIds) -> Result<(), Error> {
    let Some(highest) = given.highest() else { return Ok(()) };
    match shared.layout().await? {
        LedgerLayout::Etcd => skip_buckets(shared, given).await,
        LedgerLayout::Hierarchical => {
            let high = (highest >> 32) + 1;
            if high >= 1 << 31 {
                return Err(Error::new(
                    ErrorKind::Refused,
                    format!("skip ledger ids up to {highest}: ids end before them"),
                ));
            }
            put_and_count(shared, LONG).await?;
            if newest_high_half(shared).await?.is_none_or(|newest| newest < high) {
                put_and_count(shared, &high_name(high)).await?;
            }
            Ok(())
        }
        _ => counter::raise(store, &layout::idgen_key(), highest).await,
    }
}

/// Each counter goes up by one with each put, and in no other way.
async fn skip_buckets(shared: &Shared, given: &GivenIds) -> Result<(), Error> {
    let missing = missing(&counts(shared).await?, given);
    let sum: u64 = missing.iter().map(|(_, puts)| *puts).sum();
    if sum > SKIPPED_MAX {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "skip ledger ids: in the layout of BookKeeper's driver for etcd every one of {sum} ids takes a write of its own, and this \
                 release writes at most {SKIPPED_MAX}; copy into another layout, etcd:// or zk://"
            ),
        ));
    }
    let puts = missing.into_iter().flat_map(|(bucket, puts)| (0..puts).map(move |_| bucket_name(bucket)));
    let put = |name: String| async move { put_and_count(shared, &name).await.map(drop) };
    stream::iter(puts.map(Ok)).try_for_each_concurrent(SKIPS_AT_ONCE, put).await
}

/// How often which bucket must still be put.
fn missing(counts: &[u64], given: &GivenIds) -> Vec<(u64, u64)> {
    let wanted = |bucket: u64| {
        let first = bucket << BUCKET_SHIFT;
        // The id with the number 0 is never made.
        given.highest_in(first..=first | (BUCKET_END - 1)).map_or(0, |highest| highest - first)
    };
    let missing = (0..).zip(counts).map(|(bucket, count)| (bucket, wanted(bucket).saturating_sub(*count)));
    missing.filter(|(_, puts)| *puts > 0).collect()
}

/// How often each bucket was put.
async fn counts(shared: &Shared) -> Result<Vec<u64>, Error> {
    let look = |client: etcd_client::Client| {
        let gets = (0..BUCKETS).map(|bucket| TxnOp::get(shared.names.beside(&bucket_name(bucket)), None));
        let gets: Vec<_> = gets.collect();
        async move { client.kv_client().txn(Txn::new().and_then(gets)).await }
    };
    let found = shared.links.repeatable("count ledger ids", From::Led, look).await.map_err(|failure| failure.error)?;
    Ok(versions(&found).into_iter().map(|count| count.unwrap_or(0)).collect())
}

fn used_up() -> Error {
    Error::new(ErrorKind::Refused, "allocate ledger id: all ids are used up")
}

async fn bucket(shared: &Shared) -> Result<u64, Error> {
    for _ in 0..BUCKETS {
        let bucket = shared.bucket.fetch_add(1, Ordering::Relaxed) % BUCKETS;
        let number = put_and_count(shared, &bucket_name(bucket)).await?;
        if number < BUCKET_END {
            return Ok(bucket << BUCKET_SHIFT | number);
        }
    }
    Err(used_up())
}

fn bucket_name(bucket: u64) -> String {
    format!("/buckets/{bucket:03}")
}

/// Puts a key and says how often it was put by now. Should an answer be lost, its number is skipped.
async fn put_and_count(shared: &Shared, path: &str) -> Result<u64, Error> {
    let name = shared.names.beside(path);
    let call = |client: etcd_client::Client| {
        let name = name.clone();
        async move {
            let put = TxnOp::put(name.clone(), Vec::new(), None);
            client.kv_client().txn(Txn::new().and_then([put, TxnOp::get(name, None)])).await
        }
    };
    let what = "allocate ledger id";
    let done = shared.links.repeatable(what, From::Led, call).await.map_err(|failure| failure.error)?;
    let counted = versions(&done).into_iter().next_back().flatten();
    counted.ok_or_else(|| {
        Error::new(ErrorKind::Damaged, format!("{what}: etcd does not show the key that it has just put"))
    })
}

/// For each request of a transaction that looks at a key: how often it was put, if it is there.
fn versions(response: &TxnResponse) -> Vec<Option<u64>> {
    let answers = response.op_responses().into_iter();
    answers
        .map(|answer| match answer {
            TxnOpResponse::Get(mut got) => {
                got.take_kvs().into_iter().next().and_then(|row| u64::try_from(row.version()).ok())
            }
            _ => None,
        })
        .collect()
}

// ---- Pulsar's ---------------------------------------------------------------------------------------------------------------

const SHORT: &str = "/ledgers/idgen";
const LONG: &str = "/ledgers/idgen-long";

async fn sequence(shared: &Shared) -> Result<u64, Error> {
    if !exists(shared, LONG).await? {
        // The key may have been put once before the first number was asked for: numbers begin at 0 or at 1.
        let number = put_and_count(shared, SHORT).await? - 1;
        if number < SHORT_END {
            return Ok(number);
        }
        put_and_count(shared, LONG).await?;
    }
    for _ in 0..HIGH_TRIES_MAX {
        let high = newest_high_half(shared).await?.unwrap_or(1);
        let low = put_and_count(shared, &high_name(high)).await? - 1;
        if low < SHORT_END {
            return joined(high, low).ok_or_else(used_up);
        }
        put_and_count(shared, &high_name(high + 1)).await?;
    }
    Err(used_up())
}

fn high_name(high: u64) -> String {
    format!("{LONG}/HOB-{high:010}")
}

fn joined(high: u64, low: u64) -> Option<u64> {
    (high < 1 << 31).then_some(high << 32 | low)
}

async fn exists(shared: &Shared, path: &str) -> Result<bool, Error> {
    let options = GetOptions::new().with_count_only();
    let found = shared.prove("allocate ledger id", &shared.names.beside(path), &options).await;
    Ok(found.map_err(|failure| failure.error)?.count() > 0)
}

/// The highest of the keys that count long ids. Where a process died, keys below them are left over.
async fn newest_high_half(shared: &Shared) -> Result<Option<u64>, Error> {
    let (mut from, end) = (shared.names.beside(&format!("{LONG}/HOB-")), shared.names.beside(&format!("{LONG}/HOB.")));
    let mut newest = None;
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(1000).with_keys_only();
        let mut found = shared.prove("allocate ledger id", &from, &options).await.map_err(|failure| failure.error)?;
        let more = found.more();
        let rows = found.take_kvs();
        let Some(last) = rows.last() else { return Ok(newest) };
        from = [last.key(), b"\0"].concat();
        let prefix = shared.names.beside(&format!("{LONG}/HOB-"));
        let halves = rows.iter().filter_map(|row| half(row.key().strip_prefix(&prefix[..])?));
        newest = newest.max(halves.max());
        if !more {
            return Ok(newest);
        }
    }
}

fn half(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|high| *high < 1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_up_by_what_is_missing() {
        let counts = |first: u64| [first].into_iter().chain(std::iter::repeat_n(0, 127)).collect::<Vec<_>>();
        assert_eq!(missing(&counts(0), &GivenIds::none()), []);
        assert_eq!(missing(&counts(0), &GivenIds::up_to(0)), []);
        assert_eq!(missing(&counts(3), &GivenIds::up_to(10)), [(0, 7)]);
        assert_eq!(missing(&counts(10), &GivenIds::up_to(10)), []);
        let buckets = GivenIds::of([1..=5, (7 << 56 | 1)..=(7 << 56 | 2)]);
        assert_eq!(missing(&counts(9), &buckets), [(7, 2)]);
        // Long ids of ZooKeeper: the lower half of the first bucket is used up with them.
        assert_eq!(missing(&counts(0), &GivenIds::up_to(1 << 32 | 5)), [(0, 1 << 32 | 5)]);
        let all = missing(&counts(0), &GivenIds::up_to(1 << 56));
        assert_eq!(all, [(0, BUCKET_END - 1)], "and the number 0 of the second needs none");
    }

    #[test]
    fn names_and_halves_are_those_of_java() {
        assert_eq!(bucket_name(7), "/buckets/007");
        assert_eq!(high_name(3), "/ledgers/idgen-long/HOB-0000000003");
        assert_eq!((joined(1, 0), joined(1 << 31, 0)), (Some(1 << 32), None));
        for (digits, want) in [
            ("0000000012", Some(12)),
            ("0000000012/ID-4", None),
            ("9999999999", None),
            ("12", None),
            ("+000000012", None),
        ] {
            assert_eq!(half(digits.as_bytes()), want, "{digits}");
        }
    }
}
