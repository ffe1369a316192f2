//! Pages of typed records.

use crate::{Error, Key, MetadataStore, Versioned};

/// Up to `limit` records below `root` after `after`; empty only at the end.
///
/// `read` says `None` for a key that is no record of this kind. A record that cannot be read is logged and left out: one bad
/// record must not stop whoever walks them all, and absence from a listing proves nothing anyway. `behind` knows when nothing
/// more can follow.
pub(crate) async fn page<T>(
    store: &dyn MetadataStore,
    root: &Key,
    mut after: Option<Key>,
    limit: usize,
    behind: impl Fn(&Key) -> bool,
    read: impl Fn(&Key, Versioned) -> Option<Result<T, Error>>,
) -> Result<Vec<T>, Error> {
    loop {
        let rows = store.list(root, after.as_ref(), limit).await?;
        let ended = rows.last().is_none_or(|(key, _)| behind(key));
        after = rows.last().map(|(key, _)| key.clone());
        let mut records = Vec::with_capacity(rows.len());
        for (key, found) in rows {
            match read(&key, found) {
                None => {}
                Some(Ok(record)) => records.push(record),
                Some(Err(error)) => {
                    tracing::error!(%key, error = &error as &dyn std::error::Error, "record left out of the listing");
                }
            }
        }
        if ended || !records.is_empty() {
            return Ok(records);
        }
    }
}
