use crate::error::{Error, ErrorKind};
use crate::ids::EntryId;

/// The three sizes that decide where entries go and when they are confirmed: `1 ≤ ack ≤ write ≤ ensemble`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quorums {
    ensemble: u32,
    write: u32,
    ack: u32,
}

impl Quorums {
    /// Checks the three sizes.
    ///
    /// # Errors
    /// When `1 ≤ ack ≤ write ≤ ensemble ≤ i32::MAX` does not hold.
    pub fn new(ensemble: u32, write: u32, ack: u32) -> Result<Self, Error> {
        if ack < 1 || ack > write || write > ensemble || ensemble > i32::MAX as u32 {
            return Err(Error::new(
                ErrorKind::Quorum,
                format!("check quorums: need 1 <= ack ({ack}) <= write ({write}) <= ensemble ({ensemble})"),
            ));
        }
        Ok(Self { ensemble, write, ack })
    }

    /// How many bookies a segment has (E).
    pub const fn ensemble(self) -> u32 {
        self.ensemble
    }

    /// How many bookies get each entry (Qw).
    pub const fn write(self) -> u32 {
        self.write
    }

    /// How many of those must answer before an entry is confirmed (Qa).
    pub const fn ack(self) -> u32 {
        self.ack
    }

    /// The ensemble indices that hold `entry`, preferred one first: `(entry + w) mod E` for `w` in `0..Qw`.
    pub fn write_set(self, entry: EntryId) -> impl ExactSizeIterator<Item = usize> + Clone {
        let first = (entry.get() % u64::from(self.ensemble)) as usize;
        let ensemble = self.ensemble as usize;
        (0..self.write as usize).map(move |w| (first + w) % ensemble)
    }

    /// Whether the bookie at `index` of the ensemble is in the write set of `entry`.
    pub fn holds(self, index: usize, entry: EntryId) -> bool {
        let ensemble = u64::from(self.ensemble);
        let Ok(index) = u64::try_from(index) else { return false };
        index < ensemble && (index + ensemble - entry.get() % ensemble) % ensemble < u64::from(self.write)
    }

    /// How many members of a write set must say "no such entry" before an entry is known not to be confirmed: then fewer than
    /// the ack quorum can still hold it.
    pub const fn negatives_needed(self) -> u32 {
        self.write - self.ack + 1
    }

    /// Whether the fenced bookies (`known[i]`: the member at index `i` gave an answer that counts) cover every write set: in
    /// none of them are enough members unknown to confirm an add of the old writer. Indices beyond `known` count as unknown.
    pub fn fence_covered(self, known: &[bool]) -> bool {
        let ensemble = self.ensemble as usize;
        let is_unknown = |index: usize| !known.get(index % ensemble).copied().unwrap_or(false);
        // One window of Qw neighbours slides once around the ensemble.
        let mut unknown = (0..self.write as usize).filter(|&w| is_unknown(w)).count();
        for start in 0..ensemble {
            if unknown >= self.ack as usize {
                return false;
            }
            unknown -= usize::from(is_unknown(start));
            unknown += usize::from(is_unknown(start + self.write as usize));
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
