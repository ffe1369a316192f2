//! All rows below a root in the order of keys, a page in memory at a time.

use super::PAGE;
use crate::{Error, Key, MetadataStore, Versioned};

pub(super) type Row = (Key, Versioned);

/// A cursor. Keys that come behind it while it walks may be missed, as in every listing.
pub(super) struct Walk<'a> {
    store: &'a dyn MetadataStore,
    root: Key,
    after: Option<Key>,
    ready: std::vec::IntoIter<Row>,
    head: Option<Row>,
    ended: bool,
    wants: fn(&Key, &Versioned) -> bool,
}

impl<'a> Walk<'a> {
    /// Rows for which `wants` is true.
    pub(super) fn of(store: &'a dyn MetadataStore, root: Key, wants: fn(&Key, &Versioned) -> bool) -> Self {
        Self { store, root, after: None, ready: Vec::new().into_iter(), head: None, ended: false, wants }
    }

    /// Every row.
    pub(super) fn all(store: &'a dyn MetadataStore, root: Key) -> Self {
        Self::of(store, root, |_, _| true)
    }

    /// Makes [`Walk::head`] the next row, if it is empty and there is one.
    pub(super) async fn fill(&mut self) -> Result<(), Error> {
        while self.head.is_none() && !self.ended {
            match self.ready.next() {
                Some((key, row)) if (self.wants)(&key, &row) => self.head = Some((key, row)),
                Some(_) => {}
                None => {
                    let page = self.store.list(&self.root, self.after.as_ref(), PAGE).await?;
                    match page.last() {
                        Some((last, _)) => self.after = Some(last.clone()),
                        None => self.ended = true,
                    }
                    self.ready = page.into_iter();
                }
            }
        }
        Ok(())
    }

    /// The row that is next, after [`Walk::fill`].
    pub(super) fn head(&self) -> Option<&Row> {
        self.head.as_ref()
    }

    /// Takes it.
    pub(super) fn take(&mut self) -> Option<Row> {
        self.head.take()
    }

    /// The next row.
    pub(super) async fn next(&mut self) -> Result<Option<Row>, Error> {
        self.fill().await?;
        Ok(self.take())
    }
}
