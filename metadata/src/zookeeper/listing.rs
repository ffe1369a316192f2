//! Listings in the order of keys, over trees that have other orders.
//!
//! Ledgers: the tree's order is that of their ids, so each page walks down to where the last one ended. The other collections of
//! BookKeeper's tree are small: their names are gathered for each page. A hash tree has no order, so the names below a prefix are
//! gathered once a scan, at most [`NAMES_MAX`] of them, and kept until the scan's next page asks for what follows. Values are read
//! as a page is made, some at once; a name without a value was removed meanwhile and is left out.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::ledger::LedgerId;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use zookeeper_client::{Client, Error as ClientError};

use super::names::{COLLECTIONS, MARK_LEVELS, Place, REPAIR_COLLECTIONS, VALUES, in_shared_tree, is_bucket, unescaped};
use super::{Shared, commit};
use crate::engine::{Page, subtree};
use crate::{Error, Key, LedgerLayout, Versioned, layout};

/// How many requests of one listing are under way.
const AT_ONCE: usize = 32;
/// How many names one scan keeps.
const NAMES_MAX: usize = 100_000;
/// How many scans are remembered, and for how long one may pause.
const SCANS_MAX: usize = 4;
const SCAN_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Of how many prefixes the generation is remembered.
const PREFIXES_MAX: usize = 64;

/// A scan of hash trees between two pages.
struct Scan {
    prefix: Key,
    /// The prefix's generation before the names were gathered.
    generation: u64,
    /// The last key that was given.
    after: Option<Key>,
    names: VecDeque<Key>,
    /// Whether nothing follows the names.
    whole: bool,
    at: Instant,
}

/// Scans that may go on. Names serve only scans that began before they were gathered: others would miss what was made in between.
/// So each scan that begins starts a new generation of its prefix, and names of older generations are forgotten.
#[derive(Default)]
pub(super) struct Scans(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    /// The latest last.
    scans: VecDeque<Scan>,
    /// The generation of each prefix; what is forgotten here never comes again.
    generations: VecDeque<(Key, u64)>,
    last: u64,
}

impl Remembered {
    fn generation(&self, prefix: &Key) -> Option<u64> {
        self.generations.iter().find(|(known, _)| known == prefix).map(|(_, generation)| *generation)
    }

    fn begin(&mut self, prefix: &Key) -> u64 {
        self.scans.retain(|scan| scan.prefix != *prefix);
        self.generations.retain(|(known, _)| known != prefix);
        if self.generations.len() >= PREFIXES_MAX {
            self.generations.pop_front();
        }
        self.last += 1;
        self.generations.push_back((prefix.clone(), self.last));
        self.last
    }
}

impl Scans {
    fn locked(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation of names that are gathered from now on, for a scan that begins here or goes on.
    fn generation(&self, prefix: &Key, begins: bool) -> u64 {
        let mut known = self.locked();
        let going_on = known.generation(prefix).filter(|_| !begins);
        going_on.unwrap_or_else(|| known.begin(prefix))
    }

    fn take(&self, prefix: &Key, after: &Key) -> Option<Scan> {
        let mut known = self.locked();
        let generation = known.generation(prefix)?;
        known.scans.retain(|scan| scan.at.elapsed() < SCAN_PAUSE_MAX);
        let fits =
            |scan: &Scan| scan.prefix == *prefix && scan.generation == generation && scan.after.as_ref() == Some(after);
        let place = known.scans.iter().position(fits)?;
        known.scans.remove(place)
    }

    /// Remembers a scan, unless another has begun since its names were gathered.
    fn put(&self, scan: Scan) {
        let mut known = self.locked();
        if known.generation(&scan.prefix) != Some(scan.generation) {
            return;
        }
        if known.scans.len() >= SCANS_MAX {
            known.scans.pop_front();
        }
        known.scans.push_back(scan);
    }
}

pub(super) async fn page(
    shared: &Shared,
    prefix: &Key,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<(Key, Versioned)>, Error> {
    let (first, end) = subtree(prefix);
    let after = match after {
        Some(after) if after.as_str() >= end.as_str() => return Ok(Vec::new()),
        after => after.filter(|after| after.as_str() >= first.as_str()).cloned(),
    };
    let layout = shared.layout_for([prefix]).await?;
    let lister = Lister { shared, prefix, layout, limit, what: format!("list metadata below {prefix}") };
    if in_shared_tree(prefix) { lister.shared_page(after).await } else { lister.own_page(after).await }
}

struct Lister<'a> {
    shared: &'a Shared,
    prefix: &'a Key,
    layout: LedgerLayout,
    limit: usize,
    what: String,
}

impl Lister<'_> {
    async fn ask<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        self.shared.links.repeatable(&self.what, call).await.map_err(|failure| failure.error)
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        self.ask(|client| async move { children(&client, path).await }).await
    }

    /// Fills a page from names, and takes those from them that it is done with.
    async fn fill(&self, names: &mut VecDeque<Key>) -> Result<Vec<(Key, Versioned)>, Error> {
        let mut page = Page::default();
        while page.rows.len() < self.limit && !names.is_empty() {
            let count = AT_ONCE.min(self.limit - page.rows.len());
            let some: Vec<Key> = names.iter().take(count).cloned().collect();
            let reads = some.clone().into_iter().map(|key| async move { self.read(&key).await });
            let reads = stream::iter(reads).buffered(AT_ONCE);
            let values: Vec<Option<Versioned>> = reads.try_collect().await?;
            for (key, value) in some.into_iter().zip(values) {
                if let Some(value) = value
                    && !page.push(key, value, self.limit)
                {
                    return Ok(page.rows);
                }
                names.pop_front();
            }
        }
        Ok(page.rows)
    }

    async fn read(&self, key: &Key) -> Result<Option<Versioned>, Error> {
        let place = self.shared.names.place(key, self.layout)?;
        self.ask(|client| {
            let place = &place;
            async move { read_value(&client, place).await }
        })
        .await
    }

    // ---- BookKeeper's tree --------------------------------------------------------------------------------------------------

    async fn shared_page(&self, mut after: Option<Key>) -> Result<Vec<(Key, Versioned)>, Error> {
        loop {
            let mut names = self.ledgers(after.as_ref()).await?;
            if names.is_empty() {
                names = self.others(after.as_ref()).await?;
            }
            let Some(last) = names.back().cloned() else { return Ok(Vec::new()) };
            let rows = self.fill(&mut names).await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
            after = Some(last);
        }
    }

    /// The next ledgers, at most a page of them.
    async fn ledgers(&self, after: Option<&Key>) -> Result<VecDeque<Key>, Error> {
        let mut found = Vec::new();
        let (first, end) = subtree(self.prefix);
        // The smallest text above a key ends in a control character, which no key holds.
        let first = after.map_or(first, |after| format!("{after}\0"));
        let Some(first) = layout::first_ledger_at(&first).map(LedgerId::get) else { return Ok(VecDeque::new()) };
        for tree in self.layout.trees() {
            let walk = Walk { lister: self, first: u128::from(first), layout: self.layout };
            walk.down(self.shared.names.root(), tree, 0, &mut found).await?;
        }
        let keys = found.into_iter().map(layout::ledger_key);
        Ok(keys.take_while(|key| key.as_str() < end.as_str()).take(self.limit).collect())
    }

    /// The next ones of all that is no ledger. Those of auto-recovery come last, and are asked for when nothing comes before them.
    async fn others(&self, after: Option<&Key>) -> Result<VecDeque<Key>, Error> {
        let names = self.named(VALUES.map(str::to_owned), &COLLECTIONS, after).await?;
        if !names.is_empty() || !self.may_hold(&layout::underreplication_root()) {
            return Ok(names.into_iter().collect());
        }
        let values = layout::UNDERREPLICATION_VALUES.map(|value| format!("underreplication/{value}"));
        let mut names = self.named(values, &REPAIR_COLLECTIONS, after).await?;
        let mut marks = BTreeSet::new();
        self.marks(&layout::marks_root(), MARK_LEVELS, after, &mut marks).await?;
        if marks.len() >= self.limit
            && let Some(last) = marks.last()
        {
            // More marks may follow before the names behind them.
            names.retain(|name| name < last);
        }
        names.append(&mut marks);
        Ok(names.into_iter().collect())
    }

    /// Whether keys that are wanted may lie at or below `key`.
    fn may_hold(&self, key: &Key) -> bool {
        key == self.prefix || key.below(self.prefix).is_some() || self.prefix.below(key).is_some()
    }

    /// The wanted ones of some values, and of what lies in some directories.
    async fn named<const N: usize>(
        &self,
        values: [String; N],
        collections: &[&str],
        after: Option<&Key>,
    ) -> Result<BTreeSet<Key>, Error> {
        let mut names = BTreeSet::new();
        let mut add = |path: String| {
            let key = self.shared.names.key(&self.shared.names.shared(&path), self.layout);
            let wanted = |key: &Key| key.below(self.prefix).is_some() && after.is_none_or(|after| key > after);
            names.extend(key.filter(|key| layout::parse_ledger_key(key).is_none()).filter(wanted));
        };
        values.into_iter().for_each(&mut add);
        for collection in collections {
            if layout::ledgers_root().join(collection).is_ok_and(|key| self.may_hold(&key)) {
                for name in self.children(&self.shared.names.shared(collection)).await? {
                    add(format!("{collection}/{name}"));
                }
            }
        }
        Ok(names)
    }

    /// Adds marks from the directory `at` down, in their order, until there are enough; `levels` of directories are left.
    fn marks<'w>(
        &'w self,
        at: &'w Key,
        levels: usize,
        after: Option<&'w Key>,
        found: &'w mut BTreeSet<Key>,
    ) -> BoxFuture<'w, Result<(), Error>> {
        Box::pin(async move {
            let is_over = |key: &Key| after.is_some_and(|after| after.as_str() >= subtree(key).1.as_str());
            if found.len() >= self.limit || !self.may_hold(at) || is_over(at) {
                return Ok(());
            }
            let path = at.as_str().strip_prefix("/ledgers/").unwrap_or_default();
            let names = self.children(&self.shared.names.shared(path)).await?;
            let keys: BTreeSet<Key> = names.iter().filter_map(|name| at.join(name).ok()).collect();
            if levels == 0 {
                let wanted = |key: &Key| key.below(self.prefix).is_some() && after.is_none_or(|after| key > after);
                found.extend(keys.into_iter().filter(|key| layout::parse_mark_key(key).is_some()).filter(wanted));
                return Ok(());
            }
            for key in keys {
                self.marks(&key, levels - 1, after, found).await?;
            }
            Ok(())
        })
    }

    // ---- Hash trees ---------------------------------------------------------------------------------------------------------

    async fn own_page(&self, mut after: Option<Key>) -> Result<Vec<(Key, Versioned)>, Error> {
        let generation = self.shared.scans.generation(self.prefix, after.is_none());
        let mut going_on = after.as_ref().and_then(|after| self.shared.scans.take(self.prefix, after));
        loop {
            let (mut names, whole, generation) = match going_on.take() {
                Some(scan) => (scan.names, scan.whole, scan.generation),
                None => {
                    let (names, whole) = self.gather(after.as_ref()).await?;
                    (names, whole, generation)
                }
            };
            let last = names.back().cloned();
            let rows = self.fill(&mut names).await?;
            if let Some((given, _)) = rows.last() {
                if !names.is_empty() {
                    let after = Some(given.clone());
                    self.shared.scans.put(Scan {
                        prefix: self.prefix.clone(),
                        generation,
                        after,
                        names,
                        whole,
                        at: Instant::now(),
                    });
                }
                return Ok(rows);
            }
            if whole {
                return Ok(rows);
            }
            after = last.or(after);
        }
    }

    /// The first names after `after`, and whether those are all.
    async fn gather(&self, after: Option<&Key>) -> Result<(VecDeque<Key>, bool), Error> {
        let mut names: BTreeSet<Key> = BTreeSet::new();
        let mut whole = true;
        let mut directories = vec![(self.prefix.clone(), self.shared.names.directory(self.prefix))];
        while let Some((parent, path)) = directories.pop() {
            let mut buckets = Vec::new();
            for name in self.children(&path).await? {
                if is_bucket(&name) {
                    buckets.push(format!("{path}/{name}"));
                } else if let Some(below) = unescaped(&name).and_then(|segment| parent.join(&segment).ok()) {
                    directories.push((below, format!("{path}/{name}")));
                }
            }
            let listed = buckets.into_iter().map(|bucket| async move { self.children(&bucket).await });
            let mut listed = stream::iter(listed).buffer_unordered(AT_ONCE);
            while let Some(found) = listed.try_next().await? {
                let keys = found.iter().filter_map(|name| parent.join(&unescaped(name)?).ok());
                for key in keys.filter(|key| after.is_none_or(|after| key > after)) {
                    names.insert(key);
                    if names.len() > NAMES_MAX {
                        names.pop_last();
                        whole = false;
                    }
                }
            }
        }
        Ok((names.into_iter().collect(), whole))
    }
}

/// One walk down a tree of ledgers.
struct Walk<'a> {
    lister: &'a Lister<'a>,
    /// The first id that is wanted.
    first: u128,
    layout: LedgerLayout,
}

impl Walk<'_> {
    /// Adds ids from `path` down, in their order, until there are enough. `above`: the digits of the levels above.
    fn down<'w>(
        &'w self,
        path: &'w str,
        levels: &'w [u32],
        above: u128,
        found: &'w mut Vec<LedgerId>,
    ) -> BoxFuture<'w, Result<(), Error>> {
        Box::pin(async move {
            let Some((width, below)) = levels.split_first() else { return Ok(()) };
            if found.len() >= self.lister.limit {
                return Ok(());
            }
            let names = self.lister.children(path).await?;
            if below.is_empty() {
                let root = self.lister.shared.names.root();
                let relative = path.strip_prefix(root).map_or("", |rest| rest.trim_start_matches('/'));
                let whole =
                    |name: &String| if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
                let ids: BTreeSet<LedgerId> = names.iter().filter_map(|name| self.layout.id(&whole(name))).collect();
                found.extend(ids.into_iter().filter(|id| u128::from(id.get()) >= self.first));
                return Ok(());
            }
            let span = 10_u128.pow(below.iter().sum());
            let mut children: Vec<(u128, &String)> =
                names.iter().filter_map(|name| Some((number(name, *width)?, name))).collect();
            children.sort_unstable();
            for (digits, name) in children {
                let here = above * 10_u128.pow(*width) + digits;
                if (here + 1) * span > self.first {
                    self.down(&format!("{path}/{name}"), below, here, found).await?;
                }
            }
            Ok(())
        })
    }
}

/// A name of exactly `width` digits.
fn number(name: &str, width: u32) -> Option<u128> {
    let fits = name.len() == width as usize && name.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| name.parse().ok()).flatten()
}

pub(super) async fn children(client: &Client, path: &str) -> Result<Vec<String>, ClientError> {
    match client.list_children(path).await {
        Err(ClientError::NoNode) => Ok(Vec::new()),
        other => other,
    }
}

/// The value at a place, under either spelling.
pub(super) async fn read_value(client: &Client, place: &Place) -> Result<Option<Versioned>, ClientError> {
    for path in std::iter::once(place.path()).chain(place.other()) {
        match client.get_data(path).await {
            Ok((value, stat)) => return Ok(Some(commit::versioned(value, &stat))),
            Err(ClientError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_their_width() {
        assert_eq!((number("007", 3), number("07", 3), number("L07", 3)), (Some(7), None, None));
    }
}
