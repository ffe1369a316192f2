//! Ledger metadata: what the cluster knows of a ledger, as a value that is valid by construction.
//!
//! The stored forms are in `format`; a ledger keeps the form it was read in. Changes are methods that give a new value and
//! refuse what the life of a ledger does not allow: the end of a closed ledger never changes, only its members may.

mod format;
mod partly;
mod plain;
mod text;

use bytes::Bytes;

use crate::cold_id::{ColdId, is_cold};
use crate::cold_record::ColdRecord;
use crate::digest::{DigestType, Digester};
use crate::error::{Error, ErrorKind};
use crate::ids::{BookieId, EntryId};
use crate::keys::{MasterKey, Password};
use crate::quorum::Quorums;

/// Where a ledger is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerState {
    /// Its writer may append.
    Open,
    /// Somebody is finding its end in the writer's place.
    InRecovery,
    /// Its end is fixed for ever.
    Closed {
        /// The last entry; `None`: the ledger is empty.
        last_entry: Option<EntryId>,
        /// User bytes up to the end, as the closer knew them.
        length: u64,
    },
}

/// A run of entries with one ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The first entry of the run; it ends where the next segment begins.
    pub first_entry: EntryId,
    /// The members, as many as the ensemble size.
    pub ensemble: Vec<BookieId>,
}

/// The stored form of ledger metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataFormat {
    /// Plain lines: no digest type, no ack quorum, no custom values.
    V1,
    /// Protobuf text.
    V2,
    /// Protobuf binary, what everyone writes today.
    V3,
}

/// Which tiers hold a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Bookies only.
    Hot,
    /// Bookies and an object.
    Settled,
    /// An object only: every member of every segment is a cold id.
    Released,
}

/// What the cluster knows of a ledger. Always valid: at least one segment, ascending first entries, every ensemble complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerMetadata {
    quorums: Quorums,
    state: LedgerState,
    segments: Vec<Segment>,
    sealing: Option<(DigestType, Password)>,
    ctime_ms: Option<i64>,
    custom: Vec<(String, Bytes)>,
    ctoken: Option<i64>,
    format: MetadataFormat,
}

impl LedgerMetadata {
    /// A new open ledger with one segment from entry 0, in format 3.
    ///
    /// # Errors
    /// When the ensemble does not have exactly as many members as the quorums say.
    pub fn open(
        quorums: Quorums,
        ensemble: Vec<BookieId>,
        digest_type: DigestType,
        password: Password,
    ) -> Result<Self, Error> {
        Self {
            quorums,
            state: LedgerState::Open,
            segments: vec![Segment { first_entry: EntryId::ZERO, ensemble }],
            sealing: Some((digest_type, password)),
            ctime_ms: None,
            custom: Vec::new(),
            ctoken: None,
            format: MetadataFormat::V3,
        }
        .checked()
    }

    /// Reads a stored value of any format.
    ///
    /// # Errors
    /// When the value is malformed, of an unknown format, or breaks a rule of ledger metadata.
    pub fn decode(value: &[u8]) -> Result<Self, Error> {
        format::decode(value)
    }

    /// The stored value, in the format the ledger has. A value that another implementation wrote comes out with the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        format::encode(self)
    }

    /// The sizes that decide where entries go.
    pub fn quorums(&self) -> Quorums {
        self.quorums
    }

    /// Where the ledger is in its life.
    pub fn state(&self) -> LedgerState {
        self.state
    }

    /// Whether the end is fixed.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, LedgerState::Closed { .. })
    }

    /// The last entry of a closed ledger that has entries; `None` for an empty one and for one that is not closed.
    pub fn last_entry(&self) -> Option<EntryId> {
        match self.state {
            LedgerState::Closed { last_entry, .. } => last_entry,
            LedgerState::Open | LedgerState::InRecovery => None,
        }
    }

    /// The segments, ascending by first entry; never empty.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The last segment, where an open ledger grows.
    pub fn last_segment(&self) -> &Segment {
        self.segments.last().expect("metadata has at least one segment")
    }

    /// The segment that holds an entry (the first one, for an id before it).
    pub fn segment_for(&self, entry: EntryId) -> &Segment {
        let after = self.segments.partition_point(|s| s.first_entry <= entry);
        &self.segments[after.saturating_sub(1)]
    }

    /// The members of the segment that holds an entry.
    pub fn ensemble_of(&self, entry: EntryId) -> &[BookieId] {
        &self.segment_for(entry).ensemble
    }

    /// How digests are made; `None`: the metadata does not say (old formats).
    pub fn digest_type(&self) -> Option<DigestType> {
        self.sealing.as_ref().map(|(digest_type, _)| *digest_type)
    }

    /// The password in clear; `None`: the metadata does not say (old formats).
    pub fn password(&self) -> Option<&Password> {
        self.sealing.as_ref().map(|(_, password)| password)
    }

    /// The digester of the ledger's entries, when the metadata says how they are made.
    pub fn digester(&self) -> Option<Digester> {
        self.sealing.as_ref().map(|(digest_type, password)| Digester::new(*digest_type, password))
    }

    /// The master key of the ledger, when the metadata holds its password.
    pub fn master_key(&self) -> Option<MasterKey> {
        self.password().map(|password| MasterKey::derive(password.as_bytes()))
    }

    /// When the ledger was made, in milliseconds since 1970, if that is stored here.
    pub fn ctime_ms(&self) -> Option<i64> {
        self.ctime_ms
    }

    /// The creation token, if stored.
    pub fn ctoken(&self) -> Option<i64> {
        self.ctoken
    }

    /// The stored form.
    pub fn format(&self) -> MetadataFormat {
        self.format
    }

    /// The custom values in stored order.
    pub fn custom_values(&self) -> &[(String, Bytes)] {
        &self.custom
    }

    /// A custom value by key.
    pub fn custom(&self, key: &str) -> Option<&[u8]> {
        self.custom.iter().rev().find(|(k, _)| k == key).map(|(_, value)| &value[..])
    }

    /// The same ledger with a creation time.
    ///
    /// # Errors
    /// When the format cannot hold one.
    pub fn with_ctime_ms(mut self, ctime_ms: i64) -> Result<Self, Error> {
        self.ctime_ms = Some(ctime_ms);
        self.checked()
    }

    /// The same ledger with a creation token.
    ///
    /// # Errors
    /// When the format cannot hold one.
    pub fn with_ctoken(mut self, ctoken: i64) -> Result<Self, Error> {
        self.ctoken = Some(ctoken);
        self.checked()
    }

    /// The same ledger with a custom value: in the place of the one with the same key, or at the end.
    ///
    /// # Errors
    /// When the format cannot hold custom values.
    pub fn with_custom(&self, key: impl Into<String>, value: impl Into<Bytes>) -> Result<Self, Error> {
        let (key, value) = (key.into(), value.into());
        let mut next = self.changed();
        match next.custom.iter().position(|(k, _)| *k == key) {
            Some(place) => {
                next.custom[place].1 = value;
                let mut index = 0;
                next.custom.retain(|(k, _)| {
                    index += 1;
                    index <= place + 1 || *k != key
                });
            }
            None => next.custom.push((key, value)),
        }
        next.checked()
    }

    /// The ledger while somebody finds its end.
    ///
    /// # Errors
    /// When it is closed already.
    pub fn in_recovery(&self) -> Result<Self, Error> {
        if self.is_closed() {
            return Err(transition("begin recovery: the ledger is closed"));
        }
        let mut next = self.changed();
        next.state = LedgerState::InRecovery;
        next.checked()
    }

    /// The ledger with its end fixed.
    ///
    /// # Errors
    /// When it is closed already with another end, or the length is above `i64::MAX`.
    pub fn closed(&self, last_entry: Option<EntryId>, length: u64) -> Result<Self, Error> {
        let state = LedgerState::Closed { last_entry, length };
        if self.is_closed() && self.state != state {
            return Err(transition("close: the ledger is closed with another end"));
        }
        let mut next = self.changed();
        next.state = state;
        next.checked()
    }

    /// The ledger with `segment` as its last one: in the place of the last segment when that begins at the same entry, else
    /// after it.
    ///
    /// # Errors
    /// When the ledger is closed, the segment begins before the last one, or its ensemble has the wrong size.
    pub fn with_segment(&self, segment: Segment) -> Result<Self, Error> {
        if self.is_closed() {
            return Err(transition("change ensemble: the ledger is closed"));
        }
        let mut next = self.changed();
        if self.last_segment().first_entry == segment.first_entry {
            next.segments.pop();
        }
        next.segments.push(segment);
        next.checked()
    }

    /// The settled ledger: closed, with the record of its object.
    ///
    /// # Errors
    /// When the ledger is not closed, the record has another number of entries, or the format cannot hold custom values.
    pub fn with_cold_record(&self, record: &ColdRecord) -> Result<Self, Error> {
        let LedgerState::Closed { last_entry, .. } = self.state else {
            return Err(transition("settle: the ledger is not closed"));
        };
        let entries = last_entry.map_or(0, |last| last.get() + 1);
        if record.entries != entries {
            return Err(transition(format!(
                "settle: the object has {} entries, the closed ledger {entries}",
                record.entries
            )));
        }
        self.with_custom(ColdRecord::KEY, record.encode())
    }

    /// The released ledger: in every segment member `i` becomes `ids[i]`; sizes, end and length stay.
    ///
    /// # Errors
    /// When the ledger is not closed, or there is not one id for each member, in order.
    pub fn released_to(&self, ids: &[ColdId]) -> Result<Self, Error> {
        if !self.is_closed() {
            return Err(transition("release: the ledger is not closed"));
        }
        if !ids.iter().map(|id| u64::from(id.index())).eq(0..u64::from(self.quorums.ensemble())) {
            return Err(transition(format!(
                "release: {} cold ids do not name the {} members in order",
                ids.len(),
                self.quorums.ensemble()
            )));
        }
        let members: Vec<BookieId> = ids.iter().map(ColdId::to_bookie_id).collect();
        let mut next = self.changed();
        for segment in &mut next.segments {
            segment.ensemble.clone_from(&members);
        }
        next.forget_partial_release();
        next.checked()
    }

    /// Whether the ledger is closed and every member of every segment is a cold id.
    pub fn is_released(&self) -> bool {
        self.is_closed() && self.segments.iter().all(|s| s.ensemble.iter().all(is_cold))
    }

    /// Which tiers hold the ledger, as its metadata says. A cold record counts by being there; it is not read.
    pub fn tier(&self) -> Tier {
        if self.is_released() {
            Tier::Released
        } else if self.is_closed() && self.custom(ColdRecord::KEY).is_some() {
            Tier::Settled
        } else {
            Tier::Hot
        }
    }

    /// The same ledger in format 3, sealed as given when it did not say how: what older formats need before they can settle.
    ///
    /// # Errors
    /// None today; the result is checked like every other value.
    pub fn upgraded(&self, digest_type: DigestType, password: Password) -> Result<Self, Error> {
        let mut next = self.changed();
        next.format = MetadataFormat::V3;
        next.sealing.get_or_insert((digest_type, password));
        next.checked()
    }

    /// The same ledger without its password, for places that must not hold it: the password becomes empty.
    #[must_use]
    pub fn without_password(&self) -> Self {
        let mut next = self.clone();
        if let Some((_, password)) = &mut next.sealing {
            *password = Password::empty();
        }
        next
    }

    /// A copy about to be changed. The creation token proves who made the record; after any change it is 0, as elsewhere.
    fn changed(&self) -> Self {
        let mut next = self.clone();
        next.ctoken = self.ctoken.map(|_| 0);
        next
    }

    /// The rules that make metadata readable for every implementation.
    fn checked(self) -> Result<Self, Error> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Metadata, format!("check ledger metadata: {why}")));
        if self.segments.is_empty() {
            return refuse("no segment".to_owned());
        }
        for segment in &self.segments {
            if segment.ensemble.len() as u64 != u64::from(self.quorums.ensemble()) {
                return refuse(format!(
                    "segment {} has {} members, the ensemble size is {}",
                    segment.first_entry,
                    segment.ensemble.len(),
                    self.quorums.ensemble()
                ));
            }
        }
        if let Some(pair) = self.segments.windows(2).find(|pair| pair[0].first_entry >= pair[1].first_entry) {
            return refuse(format!("segment {} follows segment {}", pair[1].first_entry, pair[0].first_entry));
        }
        if let LedgerState::Closed { length, .. } = self.state
            && i64::try_from(length).is_err()
        {
            return refuse(format!("length {length} is above {}", i64::MAX));
        }
        match self.format {
            MetadataFormat::V1 => {
                let plain = self.sealing.is_none()
                    && self.ctime_ms.is_none()
                    && self.ctoken.is_none()
                    && self.custom.is_empty()
                    && self.quorums.ack() == self.quorums.write();
                if !plain {
                    return refuse(
                        "format 1 cannot hold digest type, times, custom values or an ack quorum".to_owned(),
                    );
                }
            }
            MetadataFormat::V2 if self.ctoken.is_some() => {
                return refuse("format 2 cannot hold a creation token".to_owned());
            }
            MetadataFormat::V2 | MetadataFormat::V3 => {}
        }
        Ok(self)
    }
}

fn transition(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Transition, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
