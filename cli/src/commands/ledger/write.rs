//! `thermocline ledger write`: lines or length-prefixed records into a ledger.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use bytes::Bytes;
use proto::v1::append_request::Message;
use proto::v1::{AppendEntries, AppendOpen, AppendRequest, CloseLedgerRequest, CreateLedgerRequest};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::Fault;
use crate::args::{Framing, Output, Target, WriteArgs};
use crate::output;
use crate::remote::{Remote, Service, refused};

/// The largest entry: below the frame limit of BookKeeper clients with room for headers.
const ENTRY_BYTES_MAX: usize = 5 * 1024 * 1024 - 1024;
/// Entries go to the node in messages of about this many bytes.
const MESSAGE_BYTES: usize = 512 * 1024;
const MESSAGE_ENTRIES: usize = 8192;

pub(super) async fn run(args: WriteArgs) -> Result<(), Fault> {
    if args.framing == Framing::Raw {
        return Err(Fault::usage("--framing raw has no entry boundaries to write; use lines or length"));
    }
    let sources = open_sources(&args.files)?;
    let node = Remote::connect_for(&args.remote.endpoint, Service::Ledgers).await?;
    let ledger_id = match args.ledger {
        Target::Existing(ledger) => ledger,
        Target::New => {
            let answer = node.ledgers().create_ledger(CreateLedgerRequest::default()).await;
            answer.map_err(|status| refused("create a ledger", &status))?.into_inner().ledger_id
        }
    };

    let (messages, requests) = mpsc::channel(4);
    let open = AppendOpen { ledger_id, password: Bytes::new() };
    messages
        .try_send(AppendRequest { message: Some(Message::Open(open)) })
        .expect("the channel is empty and its receiver alive");
    let framing = args.framing;
    let feeder =
        tokio::spawn(common::blocking::run_blocking("read the input", move || feed(sources, framing, &messages)));

    let mut acknowledged = 0;
    let answer = node.ledgers().append(ReceiverStream::new(requests)).await;
    let mut answers = answer.map_err(|status| refused(format_args!("ledger {ledger_id}"), &status))?.into_inner();
    loop {
        match answers.message().await {
            Ok(Some(run)) => acknowledged += run.count,
            Ok(None) => break,
            Err(status) => {
                return Err(refused(
                    format_args!("ledger {ledger_id}, after {acknowledged} acknowledged entries"),
                    &status,
                ));
            }
        }
    }
    // What was acknowledged is durable even when the input broke off: say both.
    let fed = feeder.await.map_err(|error| Fault::failed(format!("read the input: {error}")))?;
    let fed = fed.map_err(|fault| {
        Fault::failed(format!("{fault}; {acknowledged} entries are in ledger {ledger_id}, which is left open"))
    })?;
    if fed.entries != acknowledged {
        return Err(Fault::failed(format!(
            "ledger {ledger_id}: {} entries were sent but only {acknowledged} acknowledged; the ledger is left open",
            fed.entries
        )));
    }
    let closed = !args.keep_open;
    if closed {
        let request = CloseLedgerRequest { ledger_id, password: Bytes::new() };
        let answer = node.ledgers().close_ledger(request).await;
        answer.map_err(|status| refused(format_args!("close ledger {ledger_id}"), &status))?;
    }
    match args.remote.output {
        Output::Json => output::json(&json!({
            "ledger_id": ledger_id, "entries": acknowledged, "bytes": fed.bytes, "closed": closed,
        })),
        Output::Table => println!(
            "ledger {ledger_id}: {} entries acknowledged, {}{}",
            output::count(acknowledged),
            output::bytes(fed.bytes),
            if closed { ", closed" } else { ", left open" }
        ),
    }
    Ok(())
}

/// An input: how to name it in messages, and its bytes.
type Source = (String, Box<dyn Read + Send>);

fn open_sources(files: &[PathBuf]) -> Result<Vec<Source>, Fault> {
    if files.is_empty() {
        return Ok(vec![("standard input".to_owned(), Box::new(io::stdin()))]);
    }
    let open = |path: &PathBuf| -> Result<Source, Fault> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) if file.metadata().is_ok_and(|facts| facts.is_dir()) => {
                Err(Fault::usage(format!("{name} is a folder; name the files in it")))
            }
            Ok(file) => Ok((name, Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Fault::usage(format!("{name}: no such file"))),
            Err(error) => Err(Fault::usage(format!("{name}: {error}"))),
        }
    };
    files.iter().map(open).collect()
}

/// What was read and handed on.
#[derive(Debug, Default)]
struct Fed {
    entries: u64,
    bytes: u64,
}

/// Cuts the sources into entries and sends them in batches. Ends early, without a fault, when the stream's other side is gone:
/// the answers say why.
fn feed(sources: Vec<Source>, framing: Framing, messages: &mpsc::Sender<AppendRequest>) -> Result<Fed, Fault> {
    let mut fed = Fed::default();
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    for (name, source) in sources {
        let mut source = BufReader::with_capacity(256 * 1024, source);
        loop {
            let entry = next_entry(&mut source, framing).map_err(|error| Fault::failed(format!("{name}: {error}")))?;
            let Some(entry) = entry else { break };
            fed.entries += 1;
            fed.bytes += entry.len() as u64;
            batch_bytes += entry.len();
            batch.push(Bytes::from(entry));
            if (batch_bytes >= MESSAGE_BYTES || batch.len() >= MESSAGE_ENTRIES) && !send(messages, &mut batch) {
                return Ok(fed);
            }
            if batch.is_empty() {
                batch_bytes = 0;
            }
        }
    }
    if !batch.is_empty() {
        send(messages, &mut batch);
    }
    Ok(fed)
}

fn send(messages: &mpsc::Sender<AppendRequest>, batch: &mut Vec<Bytes>) -> bool {
    let entries = AppendEntries { payloads: std::mem::take(batch) };
    messages.blocking_send(AppendRequest { message: Some(Message::Entries(entries)) }).is_ok()
}

/// The next entry, or none at the end. Errors say what is wrong with the input.
fn next_entry(source: &mut impl BufRead, framing: Framing) -> io::Result<Option<Vec<u8>>> {
    match framing {
        Framing::Length => {
            let mut length = [0; 4];
            if source.fill_buf()?.is_empty() {
                return Ok(None);
            }
            source
                .read_exact(&mut length)
                .map_err(|_| io::Error::other("the input ends within a length; is it length-prefixed?"))?;
            let length = u32::from_be_bytes(length) as usize;
            if length > ENTRY_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a record claims {length} bytes, the most is {ENTRY_BYTES_MAX}; is the input length-prefixed?"
                )));
            }
            let mut entry = vec![0; length];
            source.read_exact(&mut entry).map_err(|_| io::Error::other("the input ends within a record"))?;
            Ok(Some(entry))
        }
        Framing::Lines | Framing::Raw => {
            let mut entry = Vec::new();
            let read = source.take(ENTRY_BYTES_MAX as u64 + 1).read_until(b'\n', &mut entry)?;
            if read == 0 {
                return Ok(None);
            }
            if entry.last() == Some(&b'\n') {
                entry.pop();
            }
            if entry.len() > ENTRY_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a line is longer than {ENTRY_BYTES_MAX} bytes; send it with --framing length in parts"
                )));
            }
            Ok(Some(entry))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(mut input: &[u8], framing: Framing) -> io::Result<Vec<Vec<u8>>> {
        let mut entries = Vec::new();
        while let Some(entry) = next_entry(&mut input, framing)? {
            entries.push(entry);
        }
        Ok(entries)
    }

    #[test]
    fn lines_lose_their_feed_and_nothing_else() {
        let entries = cut(b"a\r\n\nb\xff\nlast", Framing::Lines).unwrap();
        assert_eq!(entries, [b"a\r".to_vec(), b"".to_vec(), b"b\xff".to_vec(), b"last".to_vec()]);
    }

    #[test]
    fn records_keep_any_bytes() {
        let entries = cut(b"\0\0\0\x02\n\n\0\0\0\0\0\0\0\x01x", Framing::Length).unwrap();
        assert_eq!(entries, [b"\n\n".to_vec(), b"".to_vec(), b"x".to_vec()]);
    }

    #[test]
    fn bad_records_are_named_and_not_allocated() {
        let error = cut(b"plain text", Framing::Length).unwrap_err();
        assert!(error.to_string().contains("is the input length-prefixed?"), "{error}");
        let error = cut(b"\0\0\0\x05ab", Framing::Length).unwrap_err();
        assert!(error.to_string().contains("ends within a record"), "{error}");
    }

    #[test]
    fn a_line_too_long_is_refused() {
        let mut input = vec![b'x'; ENTRY_BYTES_MAX + 1];
        assert!(cut(&input, Framing::Lines).is_err());
        input.truncate(ENTRY_BYTES_MAX);
        input.push(b'\n');
        assert_eq!(cut(&input, Framing::Lines).unwrap()[0].len(), ENTRY_BYTES_MAX);
    }
}
