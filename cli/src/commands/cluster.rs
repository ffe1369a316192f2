//! `thermocline cluster …`.

mod format;
mod show;

use common::rng::Rng;
use metadata::admin::{self, ClusterName, Counts, Identity};
use serde_json::json;

use crate::args::{ClusterCommand, ClusterInitArgs, Output};
use crate::{Fault, output, stores};

pub(super) async fn run(command: ClusterCommand) -> Result<(), Fault> {
    match command {
        ClusterCommand::Init(args) => init(args).await,
        ClusterCommand::Show(args) => show::run(args).await,
        ClusterCommand::Format(args) => format::run(args).await,
    }
}

async fn init(args: ClusterInitArgs) -> Result<(), Fault> {
    let name = args.name.as_deref().map(str::parse::<ClusterName>).transpose();
    let name = name.map_err(|error| Fault::usage(format!("--name: {error}")))?;
    let uri = &args.at.metadata;
    let store = stores::open_or_make(uri).await?;
    let made =
        admin::init(&*store, &Rng::from_os(), name.as_ref()).await.map_err(|error| stores::fault(uri, &error))?;
    let shown = metadata::shown(uri);
    match args.output {
        Output::Json => output::json(&json!({
            "instance_id": made.instance.as_str(), "name": name_json(&made), "metadata": shown,
        })),
        Output::Table => {
            println!("made cluster {made} in {shown}");
            println!(
                "\nNow start bookies: thermocline bookie --id bookie-1 --dir DIR --listen HOST:PORT --metadata {shown}"
            );
        }
    }
    Ok(())
}

fn name_json(identity: &Identity) -> Option<&str> {
    identity.name.as_ref().map(ClusterName::as_str)
}

/// Keys by kind, for people.
pub(super) fn counts_table(counts: &Counts) -> String {
    let rows: Vec<Vec<String>> =
        counts.iter().map(|(kind, count)| vec![kind.word().to_owned(), output::count(count)]).collect();
    output::table(&["of", "keys"], &rows, &[1])
}

/// Keys by kind, for scripts.
pub(super) fn counts_json(counts: &Counts) -> serde_json::Value {
    counts
        .iter()
        .map(|(kind, count)| (kind.word().replace(' ', "_"), json!(count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
