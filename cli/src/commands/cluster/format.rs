//! `thermocline cluster format`.

use common::clock::Clock;
use common::rng::Rng;
use metadata::admin::{self, FormatOptions, Identity, Marker, State, Work};
use serde_json::json;

use super::{counts_json, counts_table, name_json};
use crate::args::{ClusterFormatArgs, Output};
use crate::confirm::confirm;
use crate::{Fault, kill_at, output, stores};

pub(super) async fn run(args: ClusterFormatArgs) -> Result<(), Fault> {
    let uri = &args.at.metadata;
    let shown = metadata::shown(uri);
    let store = stores::open(uri).await?;
    let fault = |error: metadata::Error| stores::fault(uri, &error);
    let found = admin::state(&*store).await.map_err(fault)?;
    let (identity, begun) = match &found {
        State::Cluster(identity) => (identity, None),
        State::Unfinished(marker, _) => (&marker.identity, Some(marker)),
        State::Empty | State::Headless => {
            return Err(Fault::usage(format!("metadata {shown}: {}", found.no_cluster())));
        }
    };
    let live = admin::live(&*store).await.map_err(fault)?;
    let progress = output::progress_open("counting keys");
    let census = admin::census(&*store, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    let counts = census.map_err(fault)?.keys;
    if args.dry_run {
        match args.output {
            Output::Json => output::json(&json!({
                "instance_id": identity.instance.as_str(), "name": name_json(identity), "metadata": shown, "dry_run": true,
                "keys": counts.total(), "by_kind": counts_json(&counts), "in_use_by": in_use_json(&live),
            })),
            Output::Table => {
                println!("{}", would_go(identity, begun, &shown, counts.total()));
                println!("\n{}", counts_table(&counts));
                if !live.is_empty() {
                    println!("\nrefused as long as these are registered: {}", admin::live_sentence(&live));
                }
            }
        }
        return Ok(());
    }
    if !live.is_empty() && !args.force {
        return Err(Fault::usage(format!(
            "metadata {shown}: cluster {identity} is in use by {}; stop them first (the registration of one that died ends by itself, \
             in seconds). Nothing was changed",
            admin::live_sentence(&live)
        )));
    }
    let what = format!("{} It is gone for good.", would_go(identity, begun, &shown, counts.total()));
    let kind = if identity.name.is_some() { "cluster's name" } else { "cluster's identity" };
    confirm(&what, kind, identity.to_type(), args.confirm.as_deref())?;

    let options = FormatOptions { run: Rng::from_os().uuid(), now_ms: Clock::system().wall_ms(), force: args.force };
    let bar = output::progress_count("removing keys", counts.total());
    let told = |done: u64| {
        bar.set_position(done);
        kill_at::kill_after(args.kill_after, done);
    };
    let removed = admin::format(&*store, &found, options, &told).await;
    bar.finish_and_clear();
    let removed = removed.map_err(|error| {
        // Whatever of it is done, the same command ends it.
        stores::fault(uri, &error)
            .with(" If it was begun, `thermocline cluster show` says so, and the same command ends it")
    })?;
    match args.output {
        Output::Json => output::json(&json!({
            "instance_id": identity.instance.as_str(), "name": name_json(identity), "metadata": shown, "dry_run": false,
            "keys": removed.total(), "by_kind": counts_json(&removed),
        })),
        Output::Table => {
            println!("removed cluster {identity} from {shown}: {} keys", output::count(removed.total()));
            println!("\n{}", counts_table(&removed));
            println!(
                "\nIts objects stay in the object store, below names with {}; its bookies' directories stay until `thermocline bookie format`.",
                identity.instance
            );
        }
    }
    Ok(())
}

fn would_go(identity: &Identity, begun: Option<&Marker>, metadata: &str, keys: u64) -> String {
    let keys = output::count(keys);
    match begun.map(|marker| marker.work) {
        None => format!("All {keys} keys of cluster {identity} in {metadata} will be removed."),
        Some(Work::Format) => {
            format!(
                "The removal of cluster {identity} from {metadata} was cut short: the {keys} keys that are left will be removed."
            )
        }
        Some(Work::Moved) => format!(
            "Cluster {identity} was moved from {metadata} and lives elsewhere: the {keys} keys that are left here will be removed. Its \
             bookies' directories and its objects belong to it where it is now."
        ),
        Some(Work::Copy) => format!(
            "The copy of cluster {identity} into {metadata} was cut short: the {keys} keys that are there will be removed, and the copy \
             is given up."
        ),
    }
}

fn in_use_json(live: &[admin::Live]) -> serde_json::Value {
    live.iter().map(|live| json!({ "kind": live.kind.word(), "name": live.name })).collect()
}
