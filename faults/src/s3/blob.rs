//! The bytes of an object: pieces that are shared, never copied.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

#[derive(Debug, Clone, Default)]
pub(super) struct Blob {
    pieces: Vec<Bytes>,
    bytes: u64,
}

impl Blob {
    pub(super) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len() as u64;
            self.pieces.push(piece);
        }
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.pieces.extend(other.pieces.iter().cloned());
        self.bytes += other.bytes;
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The pieces that make up a range; what lies beyond the end is left out.
    pub(super) fn slice(&self, range: &Range<u64>) -> Vec<Bytes> {
        let mut at = 0;
        let mut found = Vec::new();
        for piece in &self.pieces {
            let (begin, end) = (at, at + piece.len() as u64);
            at = end;
            let from = range.start.max(begin);
            let to = range.end.min(end);
            if from < to {
                // Both lie within the piece, whose length is a usize.
                let place = |offset: u64| usize::try_from(offset - begin).unwrap_or(piece.len());
                found.push(piece.slice(place(from)..place(to)));
            }
        }
        found
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        if let [only] = &self.pieces[..] {
            return only.clone();
        }
        self.pieces
            .iter()
            .fold(BytesMut::new(), |mut all, piece| {
                all.extend_from_slice(piece);
                all
            })
            .freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_is_the_range_of_the_whole() {
        let mut blob = Blob::default();
        for piece in ["", "abc", "d", "", "efgh"] {
            blob.push(Bytes::from_static(piece.as_bytes()));
        }
        let mut twice = blob.clone();
        twice.append(&blob);
        let whole = b"abcdefghabcdefgh";
        assert_eq!((twice.bytes(), &twice.to_bytes()[..]), (16, &whole[..]));
        for start in 0..18u64 {
            for end in start..19 {
                let found: Vec<u8> = twice.slice(&(start..end)).concat();
                let expected = &whole[(start as usize).min(16)..(end as usize).min(16)];
                assert_eq!(found, expected, "{start}..{end}");
            }
        }
    }
}
