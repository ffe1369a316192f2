//! The hop mark: a bookie that asks another member on behalf of its caller says so in the request's logging context, under the key
//! `thermocline-hop`. Whoever is asked so answers from what it has itself, or a request could go round in circles.
//!
//! Other bookies take the pair for what it is to them, context for their log. The context is looked through where it lies: how
//! many pairs come is up to the sender, and none is taken into memory.

use bytes::{Buf as _, BufMut as _, BytesMut};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// `repeated ContextPair requestContext`.
const CONTEXT_TAG: u32 = 200;
/// `ContextPair.key`.
const KEY_TAG: u32 = 1;
const KEY: &[u8] = b"thermocline-hop";

/// The marking pair as the bytes of its field: context 200, length 20, key 1, length 15; value 2, length 1.
const MARK: &[u8] = b"\xc2\x0c\x14\x0a\x0fthermocline-hop\x12\x011";

/// Marks the last frame in `out`, which begins at `start`.
pub(crate) fn mark(start: usize, out: &mut BytesMut) {
    out.put_slice(MARK);
    let length = crate::v2::frame_length(out.len() - start - 4);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Whether a request that decodes has the mark.
pub(super) fn is_marked(mut message: &[u8]) -> bool {
    while let Some((tag, field)) = next(&mut message) {
        if tag == CONTEXT_TAG && field.is_some_and(is_mark) {
            return true;
        }
    }
    false
}

fn is_mark(mut pair: &[u8]) -> bool {
    while let Some((tag, field)) = next(&mut pair) {
        if tag == KEY_TAG && field == Some(KEY) {
            return true;
        }
    }
    false
}

/// The next field: its tag, and its bytes when it has a length. `None` at the end and at what cannot be read.
fn next<'a>(message: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    if message.is_empty() {
        return None;
    }
    let (tag, wire_type) = decode_key(message).ok()?;
    if wire_type != WireType::LengthDelimited {
        skip_field(wire_type, tag, message, DecodeContext::default()).ok()?;
        return Some((tag, None));
    }
    let length = usize::try_from(decode_varint(message).ok()?).ok()?;
    let field = message.get(..length)?;
    message.advance(length);
    Some((tag, Some(field)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ledger::{EntryId, LedgerId};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::ReadTarget;
    use crate::bookkeeper::Request;
    use crate::client::encode_read_v3;

    fn read() -> BytesMut {
        let (ledger, target) = (LedgerId::new(7_u64).unwrap(), ReadTarget::Entry(EntryId::ZERO));
        let mut out = BytesMut::new();
        encode_read_v3(9, ledger, target, None, false, &mut out);
        out
    }

    #[test]
    fn the_mark_is_a_pair_of_the_context() {
        let mut marked = BytesMut::from(&b"before"[..]);
        marked.extend_from_slice(&read());
        mark(6, &mut marked);
        assert!(is_marked(&marked[10..]));
        assert_eq!(marked[6..10], (u32::try_from(marked.len()).unwrap() - 10).to_be_bytes());
        assert_eq!(Request::decode(&marked[10..]).unwrap(), Request::decode(&read()[4..]).unwrap());
        assert_eq!(hex::encode(MARK), "c20c140a0f746865726d6f636c696e652d686f70120131");
    }

    #[test]
    fn other_context_is_no_mark_however_much_there_is() {
        let mut message = read().split_off(4);
        assert!(!is_marked(&message));
        for pair in [&b"\x0a\x03abc\x12\x0fthermocline-hop"[..], b"\x0a\x0ethermocline-ho", b"", b"\x08\x01", b"\xff"] {
            message.put_slice(b"\xc2\x0c");
            message.put_u8(u8::try_from(pair.len()).unwrap());
            message.put_slice(pair);
        }
        for _ in 0..100_000 {
            message.put_slice(b"\xc2\x0c\x00");
        }
        assert!(!is_marked(&message));
        assert!(Request::decode(&message[..]).is_ok());
        message.put_slice(MARK);
        assert!(is_marked(&message), "among others");
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_through_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = is_marked(&bytes);
        }
    }
}
