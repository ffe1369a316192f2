//! `thermocline metadata copy`.

use common::clock::Clock;
use common::rng::Rng;
use metadata::admin::copy::{self, Copied, CopyOptions, Survey, Way};
use metadata::admin::{self, State};
use serde_json::json;

use super::cluster::{counts_json, counts_table};
use crate::args::{CopyArgs, MetadataCommand, Output};
use crate::{Fault, kill_at, output, stores};

pub(super) async fn run(command: MetadataCommand) -> Result<(), Fault> {
    match command {
        MetadataCommand::Copy(args) => copy(args).await,
    }
}

async fn copy(args: CopyArgs) -> Result<(), Fault> {
    if args.from.trim_end_matches('/') == args.to.trim_end_matches('/') {
        return Err(Fault::usage("--from and --to name the same store"));
    }
    let from = stores::open(&args.from).await?;
    let to = match args.dry_run && stores::missing_directory(&args.to) {
        // An empty store stands for the one that would be made.
        true => stores::open_or_make("memory:").await?,
        false => stores::open_or_make(&args.to).await?,
    };
    let (source, target) = (metadata::shown(&args.from), metadata::shown(&args.to));
    let fault = |error: metadata::Error| stores::fault_of(&format!("copy metadata from {source} to {target}"), &error);
    let progress = output::progress_open("counting keys");
    let survey = copy::survey(&*from, &*to, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    let survey = survey.map_err(fault)?;
    let way = survey.way(args.abandon_attempts);
    if args.dry_run {
        tell_plan(&survey, &source, &target, args.output);
        return way.map(drop).map_err(fault);
    }
    let (_, way) = way.map_err(fault)?;
    let total = survey.carried.total();
    let (writing, reading) =
        (output::progress_count("copying keys", total), output::progress_count("comparing keys", total));
    let copied = |done: u64| {
        writing.set_position(done);
        kill_at::kill_after(args.kill_after, done);
    };
    let options = CopyOptions {
        run: Rng::from_os().uuid(),
        now_ms: Clock::system().wall_ms(),
        abandon_attempts: args.abandon_attempts,
    };
    let done = copy::copy(&from, &to, &survey, options, &copied, &|done| reading.set_position(done)).await;
    writing.finish_and_clear();
    reading.finish_and_clear();
    let done = done.map_err(|error| match way {
        Way::Compare => fault(error),
        // Something may have been changed, whatever the reason.
        Way::Begin | Way::GoOn(..) => {
            Fault::failed(fault(error).to_string()).with(" The same command goes on where this one stopped")
        }
    })?;
    tell_done(&survey, &done, &source, &target, args.output);
    Ok(())
}

fn tell_plan(survey: &Survey, source: &str, target: &str, form: Output) {
    match form {
        Output::Json => output::json(&json!({
            "from": source, "to": target, "dry_run": true,
            "keys": survey.carried.total(), "by_kind": counts_json(&survey.carried), "left": counts_json(&survey.left),
            "running_attempts": survey.attempts,
            "in_use_by": survey.live.iter().map(|live| json!({ "kind": live.kind.word(), "name": live.name })).collect::<Vec<_>>(),
        })),
        Output::Table => {
            let cluster = match &survey.source {
                State::Cluster(identity) => format!("cluster {identity}"),
                other => other.no_cluster(),
            };
            println!("{source} -> {target}: {cluster}\n\nwould be copied:\n{}", counts_table(&survey.carried));
            if survey.left.total() > 0 {
                println!("\nwould stay (layout and identity are written anew):\n{}", counts_table(&survey.left));
            }
            if !survey.live.is_empty() {
                println!("\nregistered at the source: {}", admin::live_sentence(&survey.live));
            }
        }
    }
}

fn tell_done(survey: &Survey, done: &Copied, source: &str, target: &str, form: Output) {
    let sha256: String = done.verified.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    match form {
        Output::Json => output::json(&json!({
            "from": source, "to": target, "dry_run": false,
            "instance_id": done.identity.instance.as_str(),
            "name": done.identity.name.as_ref().map(|name| name.as_str()),
            "only_compared": done.only_compared,
            "written": done.written, "equal_before": done.equal, "removed": done.removed, "abandoned_attempts": done.abandoned,
            "verified": { "keys": done.verified.keys.total(), "bytes": done.verified.bytes, "sha256": sha256,
                "by_kind": counts_json(&done.verified.keys) },
            "left": counts_json(&survey.left),
        })),
        Output::Table => {
            let identity = &done.identity;
            match done.only_compared {
                true => println!("{target} holds cluster {identity} already; nothing was written"),
                false => println!(
                    "copied cluster {identity} from {source} to {target}: {} keys written, {} were there, {} removed, {} attempts abandoned",
                    output::count(done.written),
                    output::count(done.equal),
                    output::count(done.removed),
                    output::count(done.abandoned)
                ),
            }
            println!("\n{}", counts_table(&done.verified.keys));
            println!(
                "\nverified: {} keys, {}, equal on both sides, SHA-256 {sha256}",
                output::count(done.verified.keys.total()),
                output::bytes(done.verified.bytes)
            );
            let foreign = survey.left.of(admin::Kind::Foreign);
            if foreign > 0 {
                println!(
                    "left at the source: {} keys of BookKeeper's tree that only its own processes use",
                    output::count(foreign)
                );
            }
            if !done.only_compared {
                println!("\nFrom now on start every role with --metadata {target}, and none with {source}.");
            }
        }
    }
}
