//! The stored forms. All begin with a line `BookieMetadataFormatVersion TAB version LF`; then by version: 1 plain lines,
//! 2 protobuf text, 3 a length-delimited protobuf message. Layout: `docs/formats/ledger-metadata.md`.

use bytes::Bytes;
use prost::Message;

use super::{LedgerMetadata, LedgerState, MetadataFormat, Segment, plain, text};
use crate::digest::DigestType;
use crate::error::{Error, ErrorKind};
use crate::ids::{BookieId, EntryId};
use crate::keys::Password;
use crate::quorum::Quorums;

const PREFIX: &[u8] = b"BookieMetadataFormatVersion\t";
const VERSION_DIGITS_MAX: usize = 10;

const OPEN: i32 = 1;
const IN_RECOVERY: i32 = 2;
const CLOSED: i32 = 3;

/// The message of formats 2 and 3. All fields are optional here, so that what is missing can be told from what is zero.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LedgerMetadataFormat {
    #[prost(int32, optional, tag = "1")]
    pub(super) quorum_size: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) ensemble_size: Option<i32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) length: Option<i64>,
    #[prost(int64, optional, tag = "4")]
    pub(super) last_entry_id: Option<i64>,
    #[prost(int32, optional, tag = "5")]
    pub(super) state: Option<i32>,
    #[prost(message, repeated, tag = "6")]
    pub(super) segment: Vec<SegmentFormat>,
    #[prost(int32, optional, tag = "7")]
    pub(super) digest_type: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(super) password: Option<Bytes>,
    #[prost(int32, optional, tag = "9")]
    pub(super) ack_quorum_size: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    pub(super) ctime: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    pub(super) custom_metadata: Vec<CustomFormat>,
    #[prost(int64, optional, tag = "12")]
    pub(super) c_token: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SegmentFormat {
    #[prost(string, repeated, tag = "1")]
    pub(super) ensemble_member: Vec<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) first_entry_id: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CustomFormat {
    #[prost(string, optional, tag = "1")]
    pub(super) key: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(super) value: Option<Bytes>,
}

pub(super) fn decode(value: &[u8]) -> Result<LedgerMetadata, Error> {
    let rest = value.strip_prefix(PREFIX).ok_or_else(|| refuse("it does not begin with the format line"))?;
    let line_end = rest
        .iter()
        .take(VERSION_DIGITS_MAX + 1)
        .position(|b| *b == b'\n')
        .ok_or_else(|| refuse("the format line has no version"))?;
    let (version, rest) = (&rest[..line_end], &rest[line_end + 1..]);
    match version {
        b"1" => plain::decode(rest)?.checked(),
        b"2" => {
            let mut message = text::decode(rest)?;
            message.c_token = None;
            from_message(message, MetadataFormat::V2)
        }
        b"3" => {
            let message = LedgerMetadataFormat::decode_length_delimited(rest)
                .map_err(|e| refuse(format!("malformed protobuf: {e}")))?;
            from_message(message, MetadataFormat::V3)
        }
        _ => Err(refuse(format!("format version {:?} is not known here", String::from_utf8_lossy(version)))),
    }
}

pub(super) fn encode(metadata: &LedgerMetadata) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(PREFIX);
    match metadata.format {
        MetadataFormat::V1 => {
            out.extend_from_slice(b"1\n");
            plain::encode(metadata, &mut out);
        }
        MetadataFormat::V2 => {
            out.extend_from_slice(b"2\n");
            text::encode(&to_message(metadata), &mut out);
        }
        MetadataFormat::V3 => {
            out.extend_from_slice(b"3\n");
            out.extend_from_slice(&to_message(metadata).encode_length_delimited_to_vec());
        }
    }
    out
}

fn from_message(message: LedgerMetadataFormat, format: MetadataFormat) -> Result<LedgerMetadata, Error> {
    let write = size(message.quorum_size, "quorumSize")?;
    let ensemble = size(message.ensemble_size, "ensembleSize")?;
    let ack = if message.ack_quorum_size.is_some() { size(message.ack_quorum_size, "ackQuorumSize")? } else { write };
    let length = message.length.ok_or_else(|| refuse("length is missing"))?;
    let state = match message.state {
        None => return Err(refuse("state is missing")),
        Some(OPEN) => LedgerState::Open,
        Some(IN_RECOVERY) => LedgerState::InRecovery,
        Some(CLOSED) => {
            let last = message.last_entry_id.ok_or_else(|| refuse("a closed ledger has no last entry"))?;
            closed(last, length)?
        }
        Some(other) => return Err(refuse(format!("state {other} is not known here"))),
    };
    let sealing = match (message.digest_type, message.password) {
        (None, None) => None,
        (Some(number), Some(password)) => {
            let digest_type = DigestType::from_number(number)
                .ok_or_else(|| refuse(format!("digest type {number} is not known here")))?;
            Some((digest_type, Password::new(password)))
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err(refuse("one of digest type and password is there without the other"));
        }
    };
    let segments = message.segment.into_iter().map(segment).collect::<Result<_, _>>()?;
    let custom =
        message.custom_metadata.into_iter().map(|c| (c.key.unwrap_or_default(), c.value.unwrap_or_default())).collect();
    LedgerMetadata {
        quorums: Quorums::new(ensemble, write, ack)?,
        state,
        segments,
        sealing,
        ctime_ms: message.ctime,
        custom,
        ctoken: message.c_token,
        format,
    }
    .checked()
}

fn to_message(metadata: &LedgerMetadata) -> LedgerMetadataFormat {
    let (state, last_entry_id, length) = match metadata.state {
        LedgerState::Open => (OPEN, -1, 0),
        LedgerState::InRecovery => (IN_RECOVERY, -1, 0),
        LedgerState::Closed { last_entry, length } => {
            (CLOSED, EntryId::option_to_i64(last_entry), i64::try_from(length).unwrap_or(i64::MAX))
        }
    };
    let segment = metadata.segments.iter().map(|s| SegmentFormat {
        ensemble_member: s.ensemble.iter().map(|id| id.as_str().to_owned()).collect(),
        first_entry_id: Some(s.first_entry.as_i64()),
    });
    let custom = metadata.custom.iter().map(|(k, v)| CustomFormat { key: Some(k.clone()), value: Some(v.clone()) });
    LedgerMetadataFormat {
        quorum_size: Some(metadata.quorums.write() as i32),
        ensemble_size: Some(metadata.quorums.ensemble() as i32),
        length: Some(length),
        last_entry_id: Some(last_entry_id),
        state: Some(state),
        segment: segment.collect(),
        digest_type: metadata.digest_type().map(DigestType::number),
        password: metadata.password().map(|p| Bytes::copy_from_slice(p.as_bytes())),
        ack_quorum_size: Some(metadata.quorums.ack() as i32),
        ctime: metadata.ctime_ms,
        custom_metadata: custom.collect(),
        c_token: metadata.ctoken,
    }
}

/// The closed state of these stored numbers.
pub(super) fn closed(last_entry: i64, length: i64) -> Result<LedgerState, Error> {
    Ok(LedgerState::Closed {
        last_entry: EntryId::option_from_i64(last_entry)
            .ok_or_else(|| refuse(format!("last entry is {last_entry}")))?,
        length: u64::try_from(length).map_err(|_| refuse(format!("length is {length}")))?,
    })
}

fn segment(format: SegmentFormat) -> Result<Segment, Error> {
    let first = format.first_entry_id.ok_or_else(|| refuse("a segment has no first entry"))?;
    let ensemble = format.ensemble_member.iter().map(|id| BookieId::new(id)).collect::<Result<_, _>>()?;
    Ok(Segment { first_entry: first_entry(first)?, ensemble })
}

pub(super) fn first_entry(id: i64) -> Result<EntryId, Error> {
    EntryId::new(id).ok_or_else(|| refuse(format!("a segment begins at entry {id}")))
}

fn size(value: Option<i32>, field: &str) -> Result<u32, Error> {
    let value = value.ok_or_else(|| refuse(format!("{field} is missing")))?;
    u32::try_from(value).map_err(|_| refuse(format!("{field} is {value}")))
}

pub(super) fn refuse(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Metadata, format!("read ledger metadata: {why}"))
}
