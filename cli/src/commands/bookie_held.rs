//! `thermocline bookie read-only` and `writable`.

use bookie::{LocalDisk, begin_read_only, end_read_only};
use serde_json::json;

use crate::args::{BookieDirArgs, BookieReadOnlyArgs, Output};
use crate::fault::chain;
use crate::{Fault, output};

pub(super) async fn read_only(args: BookieReadOnlyArgs) -> Result<(), Fault> {
    let dir = args.dir.display().to_string();
    let disk = LocalDisk::buffered();
    let begun = begin_read_only(&disk, &args.dir, &args.reason).await;
    let id = begun.map_err(|error| Fault::failed(format!("--dir {dir}: {}", chain(&error))))?;
    let Some(id) = id else { return Err(no_bookie(&dir)) };
    match args.output {
        Output::Json => output::json(&json!({ "bookie": id.as_str(), "dir": dir, "read_only": true })),
        Output::Table => println!(
            "bookie {id} takes no entries from now on, within about a second if it runs; it serves what it holds, and recovery and repair go on.\n\
             `thermocline bookie writable --dir {dir}` takes it back."
        ),
    }
    Ok(())
}

pub(super) async fn writable(args: BookieDirArgs) -> Result<(), Fault> {
    let dir = args.dir.display().to_string();
    let ended = end_read_only(&LocalDisk::buffered(), &args.dir).await;
    let ended = ended.map_err(|error| Fault::failed(format!("--dir {dir}: {}", chain(&error))))?;
    let Some((id, stood)) = ended else { return Err(no_bookie(&dir)) };
    match args.output {
        Output::Json => {
            output::json(&json!({ "bookie": id.as_str(), "dir": dir, "read_only": false, "was_read_only": stood }))
        }
        Output::Table if stood => {
            println!("bookie {id} may take entries again, if nothing else keeps it from that (/readyz tells)")
        }
        Output::Table => println!("bookie {id} was not made read-only by an administrator; nothing was changed"),
    }
    Ok(())
}

fn no_bookie(dir: &str) -> Fault {
    Fault::usage(format!("--dir {dir}: this is no bookie's directory: it has no file VERSION. Nothing was changed"))
}
