use std::fmt;

/// Unit of writes, of group boundaries and of alignment, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// A zeroed buffer whose start and length are multiples of [`BLOCK_BYTES`], as direct writes need it.
///
/// Safe Rust has no aligned `Vec`: this one is longer by a block and starts inside. It never grows, so it never moves.
pub struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// A buffer of zeros, at least `bytes` long, rounded up to whole blocks.
    pub fn zeroed(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let storage = vec![0_u8; bytes + BLOCK_BYTES];
        // The hint may only be missing during constant evaluation; a wrong start costs speed (buffered writes), not truth.
        let start = match storage.as_ptr().align_offset(BLOCK_BYTES) {
            start if start < BLOCK_BYTES => start,
            _ => 0,
        };
        Self { storage, start, bytes }
    }

    /// A buffer with a copy of `content`, padded with zeros to whole blocks.
    pub fn copy_of(content: &[u8]) -> Self {
        let mut buffer = Self::zeroed(content.len());
        buffer.as_mut()[..content.len()].copy_from_slice(content);
        buffer
    }

    /// The same memory as a buffer of at least `bytes`, rounded up to whole blocks, with whatever it held; `None` when it is too
    /// short for that.
    #[must_use]
    pub fn reused(self, bytes: usize) -> Option<Self> {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        (bytes <= self.capacity()).then_some(Self { bytes, ..self })
    }

    /// The longest buffer that its memory can be.
    pub fn capacity(&self) -> usize {
        self.storage.len() - BLOCK_BYTES
    }

    /// Length in bytes; a multiple of [`BLOCK_BYTES`].
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }
}

impl AsMut<[u8]> for AlignedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.bytes]
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_and_ends_on_a_block() {
        for bytes in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuffer::zeroed(bytes);
            assert_eq!(buffer.as_ref().as_ptr().align_offset(BLOCK_BYTES), 0);
            assert_eq!(buffer.len(), bytes.next_multiple_of(BLOCK_BYTES));
            assert!(buffer.as_ref().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn its_memory_serves_again_where_it_suffices() {
        let mut buffer = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
        buffer.as_mut().fill(7);
        let buffer = buffer.reused(5000).expect("shorter");
        assert_eq!((buffer.len(), buffer.capacity()), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES));
        assert_eq!(buffer.as_ref().as_ptr().align_offset(BLOCK_BYTES), 0);
        let buffer = buffer.reused(3 * BLOCK_BYTES).expect("as long as at first");
        assert!(buffer.reused(3 * BLOCK_BYTES + 1).is_none());
    }
}
