//! `thermocline ledger read`: payloads to standard output.

use std::io::{self, Write};

use proto::v1::Entry;

use crate::Fault;
use crate::args::{Framing, ReadArgs, Tier};
use crate::remote::{Remote, Service, refused};
use crate::replay::{Range, Replay};

pub(super) async fn run(args: ReadArgs) -> Result<(), Fault> {
    if args.to.is_some_and(|to| to < args.from) {
        return Err(Fault::usage(format!("--to {} is before --from {}", args.to.unwrap_or_default(), args.from)));
    }
    let node = Remote::connect_for(&args.endpoint, Service::Ledgers).await?;
    let tier = match args.tier {
        Tier::Any => proto::v1::Tier::Unspecified,
        Tier::Hot => proto::v1::Tier::Hot,
        Tier::Cold => proto::v1::Tier::Cold,
    };
    let range = Range { ledger: args.ledger, from: args.from, to: args.to, tier };
    let failed = |status: tonic::Status| refused(format_args!("ledger {}", args.ledger), &status);
    let mut replay = Replay::start(&node, range).await.map_err(failed)?;
    let mut out = io::BufWriter::with_capacity(256 * 1024, io::stdout().lock());
    while let Some(entries) = replay.next().await.map_err(failed)? {
        for entry in &entries {
            match write_entry(&mut out, entry, args.framing) {
                // The reader of the pipe has had enough (`| head`): not a fault of ours.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                other => other.map_err(|error| Fault::failed(format!("write to standard output: {error}")))?,
            }
        }
    }
    match out.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Fault::failed(format!("write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_entry(out: &mut impl Write, entry: &Entry, framing: Framing) -> io::Result<()> {
    match framing {
        Framing::Lines => {
            out.write_all(&entry.payload)?;
            out.write_all(b"\n")
        }
        Framing::Length => {
            let length = u32::try_from(entry.payload.len()).map_err(|_| io::Error::other("an entry over 4 GiB"))?;
            out.write_all(&length.to_be_bytes())?;
            out.write_all(&entry.payload)
        }
        Framing::Raw => out.write_all(&entry.payload),
    }
}
