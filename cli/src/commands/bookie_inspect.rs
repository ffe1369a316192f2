//! `thermocline bookie check`, `list` and `dump`: a look into the directory of a bookie that does not run.

use std::collections::BTreeMap;
use std::path::Path;

use bookie::{Error, ErrorKind, Inspection, SegmentCheck};
use ledger::LedgerId;
use serde_json::json;

use crate::args::{BookieDirArgs, BookieDumpArgs, Output};
use crate::fault::chain;
use crate::{Fault, output};

async fn open(dir: &Path) -> Result<Inspection, Fault> {
    Inspection::open(dir).await.map_err(|error| fault(dir, &error))
}

fn fault(dir: &Path, error: &Error) -> Fault {
    let text = format!("--dir {}: {}", dir.display(), chain(error));
    if error.kind() == ErrorKind::Identity { Fault::usage(text) } else { Fault::failed(text) }
}

pub(super) async fn check(args: BookieDirArgs) -> Result<(), Fault> {
    let inspection = open(&args.dir).await?;
    let progress = output::progress_bytes("reading segments", inspection.segments.iter().map(|(_, bytes)| bytes).sum());
    let mut checks = Vec::new();
    for segment in &inspection.segments {
        checks.push((*segment, inspection.check(*segment).await));
        progress.inc(segment.1);
    }
    progress.finish_and_clear();
    let is_whole = |check: &Result<SegmentCheck, Error>| check.as_ref().is_ok_and(SegmentCheck::is_whole);
    let damaged = checks.iter().filter(|(_, check)| !is_whole(check)).count();
    match args.output {
        Output::Json => {
            let segments: Vec<_> = checks
                .iter()
                .map(|((id, bytes), check)| match check {
                    Ok(check) => json!({
                        "segment": Inspection::file_name(*id), "bytes": bytes, "sealed": check.sealed, "groups": check.groups,
                        "records": check.records, "entries": check.entries, "ledgers": check.ledgers,
                        "damaged_groups": check.damaged_groups, "wrong_rows": check.wrong_rows, "error": null,
                    }),
                    Err(error) => json!({
                        "segment": Inspection::file_name(*id), "bytes": bytes, "error": chain(error),
                    }),
                })
                .collect();
            output::json(&json!({ "bookie": inspection.bookie, "segments": segments, "damaged": damaged }));
        }
        Output::Table => {
            let rows: Vec<Vec<String>> = checks
                .iter()
                .map(|((id, bytes), check)| {
                    let mut row = vec![Inspection::file_name(*id), output::bytes(*bytes)];
                    match check {
                        Ok(check) => row.extend([
                            if check.sealed { "yes" } else { "no" }.to_owned(),
                            output::count(check.groups),
                            output::count(check.entries),
                            output::count(check.ledgers),
                            verdict(check),
                        ]),
                        Err(error) => {
                            row.extend([String::new(), String::new(), String::new(), String::new(), chain(error)])
                        }
                    }
                    row
                })
                .collect();
            let head = ["segment", "size", "sealed", "groups", "entries", "ledgers", ""];
            println!("bookie {}\n\n{}", inspection.bookie, output::table(&head, &rows, &[1, 3, 4, 5]));
        }
    }
    if damaged == 0 {
        return Ok(());
    }
    Err(Fault::failed(format!(
        "{damaged} of {} segments are damaged. Entries of other members are fetched after `thermocline bookie rebuild-index`, which leaves what it can read",
        checks.len()
    )))
}

fn verdict(check: &SegmentCheck) -> String {
    let mut said = Vec::new();
    if check.damaged_groups > 0 {
        said.push(format!("{} groups are damaged or missing", output::count(check.damaged_groups)));
    }
    if check.wrong_rows > 0 {
        said.push(format!("{} rows of its index are wrong", output::count(check.wrong_rows)));
    }
    if said.is_empty() { "whole".to_owned() } else { said.join(", ") }
}

pub(super) async fn list(args: BookieDirArgs) -> Result<(), Fault> {
    let inspection = open(&args.dir).await?;
    let progress = output::progress_count("looking at segments", inspection.segments.len() as u64);
    let (mut ledgers, mut unreadable) = (BTreeMap::new(), Vec::new());
    for segment in &inspection.segments {
        if let Err(error) = inspection.add_ledgers(*segment, &mut ledgers).await {
            unreadable.push(chain(&error));
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let id = |entry: Option<ledger::EntryId>| entry.map_or_else(String::new, |entry| entry.to_string());
    match args.output {
        Output::Json => {
            let rows: Vec<_> = ledgers
                .iter()
                .map(|(ledger, seen)| {
                    json!({
                        "ledger": ledger.get(), "entries": seen.entries, "first": seen.first.map(|entry| entry.get()),
                        "last": seen.last.map(|entry| entry.get()), "segments": seen.segments, "fenced": seen.fenced,
                    })
                })
                .collect();
            output::json(&json!({ "bookie": inspection.bookie, "ledgers": rows, "unreadable_segments": unreadable }));
        }
        Output::Table => {
            let rows: Vec<Vec<String>> = ledgers
                .iter()
                .map(|(ledger, seen)| {
                    vec![
                        ledger.to_string(),
                        output::count(seen.entries),
                        id(seen.first),
                        id(seen.last),
                        output::count(seen.segments),
                        if seen.fenced { "yes" } else { "" }.to_owned(),
                    ]
                })
                .collect();
            let head = ["ledger", "entries", "first", "last", "segments", "fenced"];
            println!("bookie {}\n\n{}", inspection.bookie, output::table(&head, &rows, &[0, 1, 2, 3, 4]));
            for error in &unreadable {
                println!("\nnot looked at: {error}");
            }
        }
    }
    if unreadable.is_empty() { Ok(()) } else { Err(Fault::failed("some segments cannot be read".to_owned())) }
}

pub(super) async fn dump(args: BookieDumpArgs) -> Result<(), Fault> {
    use std::io::Write as _;
    let inspection = open(&args.dir).await?;
    let segment = segment_number(&args.segment)
        .filter(|segment| inspection.segments.iter().any(|(id, _)| id == segment))
        .ok_or_else(|| {
            let names: Vec<String> = inspection.segments.iter().map(|(id, _)| Inspection::file_name(*id)).collect();
            Fault::usage(format!("there is no segment {}; there are {}", args.segment, names.join(", ")))
        })?;
    let wanted = match args.ledger {
        Some(id) => Some(LedgerId::new(id).ok_or_else(|| Fault::usage(format!("{id} is no ledger id")))?),
        None => None,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let mut failed = None;
    let form = args.output;
    if form == Output::Table {
        failed = writeln!(
            out,
            "{:>10}  {:>10}  {:<14}  {:>20}  {:>12}  {:>10}",
            "offset", "group", "kind", "ledger", "entry", "bytes"
        )
        .err();
    }
    let shown = inspection
        .records(segment, |record| {
            if failed.is_some() || wanted.is_some_and(|wanted| wanted != record.ledger) {
                return;
            }
            let kind = format!("{:?}", record.kind);
            let written = match form {
                Output::Json => writeln!(
                    out,
                    "{}",
                    json!({
                        "offset": record.offset, "group": record.sequence, "kind": kind, "ledger": record.ledger.get(),
                        "entry": record.entry.map(|entry| entry.get()), "bytes": record.bytes,
                    })
                ),
                Output::Table => {
                    let entry = record.entry.map_or_else(String::new, |entry| entry.to_string());
                    let (offset, group, ledger) = (record.offset, record.sequence, record.ledger.to_string());
                    writeln!(
                        out,
                        "{offset:>10}  {group:>10}  {kind:<14}  {ledger:>20}  {entry:>12}  {:>10}",
                        record.bytes
                    )
                }
            };
            failed = written.err();
        })
        .await
        .map_err(|error| fault(&args.dir, &error))?;
    if failed.is_none() {
        failed = out.flush().err();
    }
    match failed {
        // Whoever reads the list has had enough.
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Some(error) => Err(Fault::failed(format!("write the list: {error}"))),
        None if shown > 0 => Err(Fault::failed(format!("{shown} groups of the segment are damaged or missing"))),
        None => Ok(()),
    }
}

/// A segment by its number in hexadecimal, as its file is called.
fn segment_number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_suffix(".seg").unwrap_or(text), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_named_as_their_files() {
        assert_eq!(segment_number("000000000000001a.seg"), Some(26));
        assert_eq!(segment_number("1a"), Some(26));
        assert_eq!(segment_number("x"), None);
        assert_eq!(segment_number(&Inspection::file_name(26)), Some(26));
    }
}
