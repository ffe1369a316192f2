//! Format 1: write quorum, ensemble size and length on a line each, a line for each segment, and, unless the ledger is open, a
//! last line without line end: `<last entry> TAB CLOSED`, where -102 stands for "in recovery".

use super::format::{closed, first_entry, refuse};
use super::{LedgerMetadata, LedgerState, MetadataFormat, Segment};
use crate::error::Error;
use crate::ids::{BookieId, EntryId};
use crate::quorum::Quorums;

const CLOSED: &str = "CLOSED";
const IN_RECOVERY: i64 = -102;

pub(super) fn decode(lines: &[u8]) -> Result<LedgerMetadata, Error> {
    let lines = std::str::from_utf8(lines).map_err(|_| refuse("format 1 is not text"))?;
    let mut lines = lines.lines();
    let write = number::<u32>(lines.next(), "write quorum")?;
    let ensemble = number::<u32>(lines.next(), "ensemble size")?;
    let length = number::<i64>(lines.next(), "length")?;
    let mut state = LedgerState::Open;
    let mut segments = Vec::new();
    for line in lines {
        if state != LedgerState::Open {
            return Err(refuse("format 1 has lines after the closing one"));
        }
        let (first, members) = line.split_once('\t').ok_or_else(|| refuse("a line of format 1 has no members"))?;
        let first = number::<i64>(Some(first), "first entry")?;
        if members == CLOSED {
            state = if first == IN_RECOVERY { LedgerState::InRecovery } else { closed(first, length)? };
            continue;
        }
        let ensemble = members.split('\t').map(BookieId::new).collect::<Result<_, _>>()?;
        segments.push(Segment { first_entry: first_entry(first)?, ensemble });
    }
    Ok(LedgerMetadata {
        quorums: Quorums::new(ensemble, write, write)?,
        state,
        segments,
        sealing: None,
        ctime_ms: None,
        custom: Vec::new(),
        ctoken: None,
        format: MetadataFormat::V1,
    })
}

pub(super) fn encode(metadata: &LedgerMetadata, out: &mut Vec<u8>) {
    let (length, end) = match metadata.state {
        LedgerState::Open => (0, None),
        LedgerState::InRecovery => (0, Some(IN_RECOVERY)),
        LedgerState::Closed { last_entry, length } => (length, Some(EntryId::option_to_i64(last_entry))),
    };
    let mut lines = format!("{}\n{}\n{length}\n", metadata.quorums.write(), metadata.quorums.ensemble());
    for segment in &metadata.segments {
        lines.push_str(&segment.first_entry.to_string());
        for member in &segment.ensemble {
            lines.push('\t');
            lines.push_str(member.as_str());
        }
        lines.push('\n');
    }
    if let Some(end) = end {
        lines.push_str(&format!("{end}\t{CLOSED}"));
    }
    out.extend_from_slice(lines.as_bytes());
}

fn number<T: std::str::FromStr>(text: Option<&str>, field: &str) -> Result<T, Error> {
    text.and_then(|t| t.parse().ok()).ok_or_else(|| refuse(format!("{field} of format 1 is missing or no number")))
}
