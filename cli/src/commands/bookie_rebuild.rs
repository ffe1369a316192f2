//! `thermocline bookie rebuild-index`.

use bookie::{ErrorKind, Rebuilt, rebuild_index};
use common::clock::Clock;
use serde_json::json;

use crate::args::{BookieRebuildArgs, Output};
use crate::fault::chain;
use crate::{Fault, output};

pub(super) async fn run(args: BookieRebuildArgs) -> Result<(), Fault> {
    let progress = output::progress_bytes("reading segments", 0);
    let told = |done: u64, total: u64| {
        progress.set_length(total);
        progress.set_position(done);
    };
    let clock = Clock::system();
    let began = clock.now();
    let rebuilt = rebuild_index(&args.dir, told).await;
    progress.finish_and_clear();
    let rebuilt = rebuilt.map_err(|error| {
        let text = format!("--dir {}: {}", args.dir.display(), chain(&error));
        match error.kind() {
            ErrorKind::Identity => Fault::usage(format!("{text}. Nothing was changed")),
            _ => Fault::failed(format!("{text}. The same command begins anew")),
        }
    })?;
    tell(&args, &rebuilt, clock.now() - began);
    Ok(())
}

fn tell(args: &BookieRebuildArgs, rebuilt: &Rebuilt, elapsed: std::time::Duration) {
    let dir = args.dir.display().to_string();
    if args.output == Output::Json {
        return output::json(&json!({
            "bookie": rebuilt.bookie, "dir": dir, "segments": rebuilt.sealed + rebuilt.reread, "reread": rebuilt.reread,
            "unreadable": rebuilt.unreadable, "lost": rebuilt.lost, "damaged_groups": rebuilt.damaged_groups, "bytes": rebuilt.bytes,
            "entries": rebuilt.entries, "ledgers": rebuilt.ledgers, "tombstones": rebuilt.tombstones,
            "check_at_start": rebuilt.marked, "seconds": elapsed.as_secs_f64(),
        }));
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let tombstones = match rebuilt.tombstones {
        Some(count) => format!("{}, from the old index", output::count(count)),
        None => "lost with the old index".to_owned(),
    };
    let rows = vec![
        row("segments", output::count(rebuilt.sealed + rebuilt.reread)),
        row("of these given an index", output::count(rebuilt.reread)),
        row("bytes read", format!("{} in {}", output::bytes(rebuilt.bytes), output::duration(elapsed))),
        row("entries", output::count(rebuilt.entries)),
        row("ledgers", output::count(rebuilt.ledgers)),
        row("dropped ledgers", tombstones),
        row("damaged groups", output::count(rebuilt.damaged_groups)),
        row("unreadable segments", output::count(rebuilt.unreadable.len() as u64)),
    ];
    println!(
        "rebuilt the index of bookie {} in {dir}\n\n{}",
        rebuilt.bookie,
        output::table(&["", ""], &rows, &[]).trim_start()
    );
    for name in &rebuilt.lost {
        println!("\n{name} is not there, and the old index names it");
    }
    for name in &rebuilt.unreadable {
        println!("\n{name} cannot be read and was left as it is");
    }
    if rebuilt.marked {
        println!(
            "\nSomething may be missing: at its next start the bookie asks metadata and the other members of its ledgers, and fetches what it \
             lost. Until then what is missing is answered as unknown."
        );
    }
}
