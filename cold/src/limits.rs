/// What bounds a row group and what a reader refuses before it allocates.
///
/// A row group is the unit of one GET and of one cache block, so these bound the memory of every reader as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Encoded bytes of a row group; only a row that is larger by itself stands in a larger group, alone.
    pub group_encoded_bytes: u64,
    /// Decoded bytes of a row group, and of a single row.
    pub group_raw_bytes: u64,
    /// Rows of a row group.
    pub group_rows: u32,
    /// A payload page is closed when it reaches this many decoded bytes.
    pub page_bytes: usize,
    /// A page of any other column is closed at this many rows, which keeps a point read small.
    pub page_rows: usize,
    /// How many payload bytes are looked at to decide whether compression pays.
    pub sample_bytes: usize,
    /// The largest tail (page indexes and footer) a reader accepts.
    pub tail_bytes: u64,
}

impl Limits {
    /// The limits of format version 1.
    pub const fn v1() -> Self {
        Self {
            group_encoded_bytes: 8 << 20,
            group_raw_bytes: 64 << 20,
            group_rows: 131_072,
            page_bytes: 128 << 10,
            page_rows: 4_096,
            sample_bytes: 256 << 10,
            tail_bytes: 256 << 20,
        }
    }

    /// The largest encoded row group a reader fetches: twice the writer's limit, or a row that stands alone.
    pub(crate) const fn accepted_group_bytes(&self, rows: u64) -> u64 {
        2 * if rows == 1 { self.group_raw_bytes } else { self.group_encoded_bytes }
    }

    /// The largest decoded row group a reader accepts.
    pub(crate) const fn accepted_raw_bytes(&self) -> u64 {
        2 * self.group_raw_bytes
    }

    /// The most rows a reader accepts in a row group.
    pub(crate) const fn accepted_rows(&self) -> u64 {
        2 * self.group_rows as u64
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::v1()
    }
}
