//! Reads the header that stands before each Parquet page, as far as limits need it.
//!
//! The Parquet library reserves what a header declares before it looks at the data, and headers of pages that were fetched alone
//! are not covered by a limit of its own. So every header is read here first: a page that claims more than it may is refused
//! before anything is allocated for it. The format is Thrift's compact protocol.

/// What limits need to know of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes of the header itself.
    pub(crate) header_bytes: usize,
    /// Bytes of the page after its header, as stored.
    pub(crate) stored_bytes: usize,
    /// Bytes of the page after decompression.
    pub(crate) raw_bytes: usize,
    /// Values in the page, nulls included.
    pub(crate) values: usize,
}

/// Reads the header of a version 1 data page, the only kind version 1 objects have. `None`: it is malformed or of another kind.
pub(crate) fn read(bytes: &[u8]) -> Option<PageHeader> {
    let mut input = Input { bytes, at: 0 };
    let (mut kind, mut raw, mut stored, mut values) = (None, None, None, None);
    let mut id = 0;
    while let Some(wire_type) = input.field(&mut id)? {
        match (id, wire_type) {
            (1, I32) => kind = Some(input.zigzag()?),
            (2, I32) => raw = Some(input.zigzag()?),
            (3, I32) => stored = Some(input.zigzag()?),
            (5, STRUCT) => {
                let mut inner = 0;
                while let Some(inner_type) = input.field(&mut inner)? {
                    match (inner, inner_type) {
                        (1, I32) => values = Some(input.zigzag()?),
                        _ => input.skip(inner_type, 0)?,
                    }
                }
            }
            _ => input.skip(wire_type, 0)?,
        }
    }
    const DATA_PAGE: i64 = 0;
    let size = |value: Option<i64>| {
        value.and_then(|value| i32::try_from(value).ok()).and_then(|value| usize::try_from(value).ok())
    };
    (kind? == DATA_PAGE).then_some(())?;
    Some(PageHeader {
        header_bytes: input.at,
        stored_bytes: size(stored)?,
        raw_bytes: size(raw)?,
        values: size(values)?,
    })
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// Statistics nest two deep; anything deeper is not a page header.
const DEPTH_MAX: u8 = 8;

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.bytes.len()).then(|| self.at = end)
    }

    /// The next field's type, its id left in `id`; the inner `None` is the end of the struct.
    fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let step = i64::from(byte >> 4);
        *id = if step == 0 { self.zigzag()? } else { id.checked_add(step)? };
        Some(Some(byte & 0x0f))
    }

    fn skip(&mut self, wire_type: u8, depth: u8) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match wire_type {
            TRUE | FALSE => Some(()),
            BYTE => self.advance(1),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.advance(8),
            BINARY => {
                let bytes = self.varint()?;
                self.advance(bytes)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                let element = head & 0x0f;
                for _ in 0..count {
                    // A boolean in a list takes a byte, as a field it takes none.
                    if matches!(element, TRUE | FALSE) { self.advance(1)? } else { self.skip(element, depth + 1)? }
                }
                Some(())
            }
            STRUCT => {
                let mut id = 0;
                while let Some(inner) = self.field(&mut id)? {
                    self.skip(inner, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// type 0, raw 100, stored 60, data page header { 7 values, PLAIN, RLE, RLE }.
    const HEADER: [u8; 18] =
        [0x15, 0x00, 0x15, 0xc8, 0x01, 0x15, 0x78, 0x2c, 0x15, 0x0e, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06, 0x00, 0x00];

    #[test]
    fn reads_what_limits_need() {
        let header = read(&HEADER).unwrap();
        assert_eq!(header, PageHeader { header_bytes: HEADER.len(), stored_bytes: 60, raw_bytes: 100, values: 7 });
    }

    #[test]
    fn refuses_other_pages_and_negative_sizes() {
        let with = |at: usize, value: u8| {
            let mut bytes = HEADER;
            bytes[at] = value;
            read(&bytes)
        };
        assert_eq!(with(1, 0x04), None, "a dictionary page");
        assert_eq!(with(6, 0x79), None, "a negative size");
        for end in 0..HEADER.len() {
            assert_eq!(read(&HEADER[..end]), None, "cut at {end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(header) = read(&bytes) {
                prop_assert!(header.header_bytes <= bytes.len());
            }
        }
    }
}
