//! Ledger ids as Java's clients make them: from the numbers that ZooKeeper gives to sequential znodes, which it never gives twice.
//!
//! Short ids are the numbers below `idgen`. Long ones are made of two halves: the high one is the name of the newest directory
//! below `idgen-long`, the low one a number given there. A hierarchical cluster begins with short ids and goes over to long ones when
//! they are used up; then `idgen-long` stands there for everyone to see.

use futures::future::join_all;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as ClientError};

use super::Shared;
use super::commit::PERSISTENT;
use crate::{Error, ErrorKind, LedgerLayout};

const NUMBERED: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
/// One behind the last number of a directory.
const NUMBERS_END: i64 = 2_147_483_647;
/// How many directories of high halves stay.
const HIGH_KEPT: usize = 3;
/// A high half that is full is followed by the next.
const HIGH_TRIES_MAX: usize = 4;

pub(super) async fn allocate(shared: &Shared) -> Result<u64, Error> {
    take(shared, shared.layout().await?).await
}

/// An id behind every one that was given. Java gives short ones in the long layout too until `idgen-long` stands, so that is not made by
/// asking: it would end them for good.
pub(super) async fn behind_given(shared: &Shared) -> Result<u64, Error> {
    match shared.layout().await? {
        LedgerLayout::LongHierarchical => take(shared, LedgerLayout::Hierarchical).await,
        other => take(shared, other).await,
    }
}

/// The next id as clients of `layout` make it.
async fn take(shared: &Shared, layout: LedgerLayout) -> Result<u64, Error> {
    // Should an answer be lost, its number is skipped.
    let call = |client: Client| {
        let root = shared.names.root().to_owned();
        async move { Ids { client, root }.next(layout).await }
    };
    let id = shared.links.repeatable("allocate ledger id", call).await.map_err(|failure| failure.error)?;
    id.ok_or_else(|| Error::new(ErrorKind::Refused, "allocate ledger id: the layout holds no more ids"))
}

/// Makes long ids begin behind `highest`, where the layout has long ones. Whoever has `idgen-long` makes no short ones any more.
pub(super) async fn skip(shared: &Shared, highest: u64) -> Result<(), Error> {
    let layout = shared.layout().await?;
    let high = (highest >> 32) + 1;
    let refused = |why: &str| Error::new(ErrorKind::Refused, format!("skip ledger ids up to {highest}: {why}"));
    if !matches!(layout, LedgerLayout::Hierarchical | LedgerLayout::LongHierarchical) {
        return Err(refused(
            "a cluster of this layout in ZooKeeper has short ids only, which cannot begin behind others; name another one, \
             zk+hierarchical:// or zk+longhierarchical://",
        ));
    }
    if high >= 1 << 31 {
        return Err(refused("ZooKeeper's ids end before them"));
    }
    let call = |client: Client| {
        let root = shared.names.root().to_owned();
        async move {
            let ids = Ids { client, root };
            let halves = ids.high_halves().await?;
            if halves.last().is_none_or(|newest| *newest < high) {
                ids.client.mkdir(&format!("{}/{}", ids.long_directory(), high_name(high)), &PERSISTENT).await?;
            }
            Ok(())
        }
    };
    shared.links.repeatable("skip ledger ids", call).await.map_err(|failure| failure.error)
}

struct Ids {
    client: Client,
    root: String,
}

impl Ids {
    async fn next(&self, layout: LedgerLayout) -> Result<Option<u64>, ClientError> {
        let long = match layout {
            LedgerLayout::LongHierarchical => true,
            LedgerLayout::Hierarchical => self.client.check_stat(&self.long_directory()).await?.is_some(),
            LedgerLayout::LegacyHierarchical | LedgerLayout::Flat | LedgerLayout::Etcd => false,
        };
        if !long {
            let number = self.number(&format!("{}/idgen", self.root)).await?;
            if number.is_some() || layout != LedgerLayout::Hierarchical {
                return Ok(number);
            }
        }
        self.next_long().await
    }

    fn long_directory(&self) -> String {
        format!("{}/idgen-long", self.root)
    }

    /// Of the directories that are there, in their order.
    async fn high_halves(&self) -> Result<Vec<u64>, ClientError> {
        let names = match self.client.list_children(&self.long_directory()).await {
            Err(ClientError::NoNode) => Vec::new(),
            other => other?,
        };
        let mut halves: Vec<u64> = names.iter().filter_map(|name| high_half(name)).collect();
        halves.sort_unstable();
        Ok(halves)
    }

    async fn next_long(&self) -> Result<Option<u64>, ClientError> {
        let directory = self.long_directory();
        for _ in 0..HIGH_TRIES_MAX {
            let halves = self.high_halves().await?;
            let newest = halves.last().copied();
            if let Some(high) = newest
                && let Some(low) = self.number(&format!("{directory}/{}", high_name(high))).await?
            {
                return Ok(joined(high, low));
            }
            let next = newest.map_or(1, |high| high + 1);
            self.client.mkdir(&format!("{directory}/{}", high_name(next)), &PERSISTENT).await?;
            let old = halves.len().saturating_sub(HIGH_KEPT - 1);
            let old = halves[..old].iter().map(|high| format!("{directory}/{}", high_name(*high)));
            // What cannot be removed stays until the next time.
            join_all(old.map(|path| async move { self.client.delete(&path, None).await })).await;
        }
        Ok(None)
    }

    /// The next number of a directory; `None` when it has no more.
    async fn number(&self, directory: &str) -> Result<Option<u64>, ClientError> {
        let prefix = format!("{directory}/ID-");
        let made = match self.client.create(&prefix, &[], &NUMBERED).await {
            Err(ClientError::NoNode) => {
                self.client.mkdir(directory, &PERSISTENT).await?;
                self.client.create(&prefix, &[], &NUMBERED).await
            }
            other => other,
        };
        let (_, sequence) = made?;
        // It has done its work; what is left of it goes with the session.
        let _ = self.client.delete(&format!("{prefix}{sequence}"), None).await;
        // Behind the last number ZooKeeper goes on with negative ones.
        let number = sequence.into_i64();
        Ok(u64::try_from(number).ok().filter(|_| number < NUMBERS_END))
    }
}

fn high_name(high: u64) -> String {
    format!("HOB-{high:010}")
}

fn high_half(name: &str) -> Option<u64> {
    // Some clients leave out the first part.
    name.strip_prefix("HOB-").unwrap_or(name).parse().ok().filter(|high| *high < 1 << 31)
}

fn joined(high: u64, low: u64) -> Option<u64> {
    (high < 1 << 31).then_some(high << 32 | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_joined_as_java_does() {
        assert_eq!(joined(1, 0), Some(4_294_967_296));
        assert_eq!(joined(2, 5), Some(8_589_934_597));
        assert_eq!(joined(1 << 31, 0), None);
        assert_eq!(high_name(1), "HOB-0000000001");
        assert_eq!(high_half("HOB-0000000012"), Some(12));
        assert_eq!(high_half("0000000012"), Some(12));
        assert_eq!(high_half("HOB-9999999999"), None);
        assert_eq!(high_half("x"), None);
    }
}
