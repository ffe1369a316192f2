//! Cutting a byte stream into frames.
//!
//! A frame is `u32 length` (big-endian, not counting itself) and that many payload bytes, in both directions and both protocol
//! versions. A length that is negative or over the limit is fatal: the stream cannot be followed any further, and the other side
//! gets no reply.

use bytes::{Buf, Bytes, BytesMut};

/// Default limit of a whole frame, length word included: BookKeeper's 5 MiB plus the 10 KiB that Pulsar adds.
pub const FRAME_BYTES_MAX_DEFAULT: usize = 5_253_120;

/// Bytes of the length word.
const LENGTH_BYTES: usize = 4;

/// Most that the buffer is grown ahead of the bytes that have really arrived, so that announcing a large frame and sending
/// nothing costs the sender more than us.
const RESERVE_BYTES_MAX: usize = 256 * 1024;

/// The stream can no longer be cut into frames; close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length word, read as signed, is negative.
    #[error("read frame: negative length {0}")]
    Negative(i32),
    /// The frame with its length word exceeds the limit.
    #[error("read frame: {bytes} bytes announced, {limit_bytes} allowed")]
    TooLong {
        /// Announced size, length word included.
        bytes: usize,
        /// The limit it exceeds.
        limit_bytes: usize,
    },
}

/// Cuts frames off the front of a receive buffer.
#[derive(Debug, Clone)]
pub struct FrameDecoder {
    limit_bytes: usize,
}

impl FrameDecoder {
    /// A decoder that accepts frames of up to `limit_bytes`, length word included.
    pub fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes }
    }

    /// Size of the frame at the front of `buf`, length word included, as soon as its length word is there.
    ///
    /// Lets a server take the bytes from a budget before it reads them.
    ///
    /// # Errors
    /// The length word is negative or over the limit.
    pub fn announced(&self, buf: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(word) = buf.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = i32::from_be_bytes(*word);
        let Ok(length) = usize::try_from(length) else { return Err(FrameError::Negative(length)) };
        let bytes = length.saturating_add(LENGTH_BYTES);
        if bytes > self.limit_bytes {
            return Err(FrameError::TooLong { bytes, limit_bytes: self.limit_bytes });
        }
        Ok(Some(bytes))
    }

    /// Takes the next whole frame off `buf` and returns its payload, without copying; `None` when more bytes must be read first.
    ///
    /// The payload shares memory with the buffer it was received in, which lives until all frames cut from it are dropped.
    ///
    /// # Errors
    /// The length word is negative or over the limit; `buf` is left as it is.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        let Some(bytes) = self.announced(buf)? else { return Ok(None) };
        if buf.len() < bytes {
            buf.reserve((bytes - buf.len()).min(RESERVE_BYTES_MAX));
            return Ok(None);
        }
        let mut frame = buf.split_to(bytes);
        frame.advance(LENGTH_BYTES);
        Ok(Some(frame.freeze()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn limit_counts_the_length_word() {
        let mut decoder = FrameDecoder::new(14);
        let mut buf = BytesMut::from(&framed(&[7; 10])[..]);
        assert_eq!(decoder.decode(&mut buf).unwrap().unwrap().len(), 10);
        let mut buf = BytesMut::from(&framed(&[7; 11])[..]);
        assert_eq!(decoder.decode(&mut buf), Err(FrameError::TooLong { bytes: 15, limit_bytes: 14 }));
    }

    #[test]
    fn bad_lengths_are_refused_before_the_payload_arrives() {
        let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
        let mut buf = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(decoder.decode(&mut buf), Err(FrameError::Negative(-1)));
        let mut buf = BytesMut::from(&[0x7f, 0xff, 0xff, 0xff][..]);
        assert!(matches!(decoder.decode(&mut buf), Err(FrameError::TooLong { .. })));
        assert!(buf.capacity() < 1024, "nothing is allocated for a frame over the limit");
    }

    #[test]
    fn an_announced_frame_costs_little_until_it_arrives() {
        let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
        let mut buf = BytesMut::from(&5_000_000u32.to_be_bytes()[..]);
        assert_eq!(decoder.announced(&buf), Ok(Some(5_000_004)));
        assert_eq!(decoder.decode(&mut buf), Ok(None));
        assert!(buf.capacity() <= 2 * RESERVE_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn frames_survive_any_chunking(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1usize..20, 1..20),
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| framed(payload)).collect();
            let mut decoder = FrameDecoder::new(64);
            let (mut buf, mut got, mut at, mut cut) = (BytesMut::new(), Vec::new(), 0, 0);
            while at < stream.len() {
                let end = (at + cuts[cut % cuts.len()]).min(stream.len());
                buf.extend_from_slice(&stream[at..end]);
                (at, cut) = (end, cut + 1);
                while let Some(payload) = decoder.decode(&mut buf).unwrap() {
                    got.push(payload.to_vec());
                }
            }
            prop_assert_eq!(got, payloads);
            prop_assert!(buf.is_empty());
        }

        #[test]
        fn random_streams_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = FrameDecoder::new(100);
            let mut buf = BytesMut::from(&bytes[..]);
            while let Ok(Some(payload)) = decoder.decode(&mut buf) {
                prop_assert!(payload.len() + LENGTH_BYTES <= 100);
            }
        }
    }
}
