//! Frames on their way to a socket: small ones packed into one buffer, large bodies passed on without a copy, so that one
//! system call carries as many requests as are waiting.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ledger::MasterKey;
use proto::client::{AddFlags, add_head_v2};

/// Bodies from this size on are not copied into the packing buffer.
const OWN_CHUNK_BYTES_MIN: usize = 4 * 1024;

/// Bytes to be written, in order.
#[derive(Default)]
pub(crate) struct Outgoing {
    chunks: VecDeque<Bytes>,
    /// What follows the chunks.
    tail: BytesMut,
    bytes: usize,
}

impl Outgoing {
    /// Appends an ADD frame.
    pub(crate) fn push_add(&mut self, master_key: &MasterKey, body: Bytes, flags: AddFlags) {
        self.push_with(|out| out.put_slice(&add_head_v2(master_key, body.len(), flags)));
        if body.len() < OWN_CHUNK_BYTES_MIN {
            self.push_with(|out| out.put_slice(&body));
        } else {
            self.chunks.push_back(self.tail.split().freeze());
            self.bytes += body.len();
            self.chunks.push_back(body);
        }
    }

    /// Appends what `write` puts into the packing buffer.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        write(&mut self.tail);
        self.bytes += self.tail.len() - before;
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&self.tail[..], |chunk| &chunk[..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.chunks.iter().map(|chunk| &chunk[..]).chain(std::iter::once(&self.tail[..]));
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces.filter(|piece| !piece.is_empty())) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes = self.bytes.checked_sub(count).expect("only what is there can be written");
        while let Some(front) = self.chunks.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.chunks.pop_front();
        }
        self.tail.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use ledger::MasterKey;

    use super::*;

    #[test]
    fn small_and_large_bodies_leave_in_order() {
        let bodies =
            [vec![1; 10], vec![2; OWN_CHUNK_BYTES_MIN], vec![3; 5], vec![4; OWN_CHUNK_BYTES_MIN + 7], vec![5; 1]];
        for step in [1, 7, 4096, 100_000] {
            let mut out = Outgoing::default();
            let mut expected = Vec::new();
            for body in &bodies {
                out.push_add(&MasterKey::EMPTY, Bytes::from(body.clone()), AddFlags::default());
                expected.extend_from_slice(&add_head_v2(&MasterKey::EMPTY, body.len(), AddFlags::default()));
                expected.extend_from_slice(body);
            }
            let mut written = Vec::new();
            while out.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = out.chunks_vectored(&mut slices);
                let ready: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                assert!(ready.starts_with(out.chunk()) || out.chunk().is_empty());
                let part = &ready[..ready.len().min(step)];
                written.extend_from_slice(part);
                let count = part.len();
                out.advance(count);
            }
            assert_eq!(written, expected, "in steps of {step}");
        }
    }
}
