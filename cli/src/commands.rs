//! From parsed arguments to an exit code; one file a command group.

mod bench;
mod bookie_format;
mod bookie_held;
mod bookie_inspect;
mod bookie_rebuild;
mod cluster;
mod config;
mod cookie;
mod copy;
mod ledger;
mod offload;
mod standalone;
mod status;
mod store;
mod version;

use clap::CommandFactory;

use crate::Fault;
use crate::args::{BookieArgs, BookieCommand, Cli, Command, LogFormat};

/// Runs one command to its end.
pub async fn run(cli: Cli) -> Result<(), Fault> {
    let serves = matches!(
        cli.command,
        Command::Standalone(_)
            | Command::Bookie(BookieArgs { command: None, .. })
            | Command::Gateway(_)
            | Command::Offloader(_)
    );
    let filter = cli.log.unwrap_or_else(|| if serves { "info".to_owned() } else { "error".to_owned() });
    let format = match cli.log_format {
        LogFormat::Text => common::telemetry::LogFormat::Text,
        LogFormat::Json => common::telemetry::LogFormat::Json,
    };
    common::telemetry::init(format, &filter).map_err(|error| Fault::usage(format!("--log {filter}: {error}")))?;
    match cli.command {
        Command::Demo(args) => crate::demo::run(args).await,
        Command::Standalone(args) => standalone::run(args).await,
        Command::Bookie(BookieArgs { command: Some(command), .. }) => match command {
            BookieCommand::Format(args) => bookie_format::run(args).await,
            BookieCommand::ReadOnly(args) => bookie_held::read_only(args).await,
            BookieCommand::Writable(args) => bookie_held::writable(args).await,
            BookieCommand::RebuildIndex(args) => Box::pin(bookie_rebuild::run(args)).await,
            BookieCommand::Check(args) => Box::pin(bookie_inspect::check(args)).await,
            BookieCommand::List(args) => Box::pin(bookie_inspect::list(args)).await,
            BookieCommand::Dump(args) => Box::pin(bookie_inspect::dump(args)).await,
        },
        Command::Bookie(args) => crate::roles::run_bookie(args).await,
        Command::Gateway(args) => crate::roles::run_gateway(args).await,
        Command::Offloader(args) => crate::roles::run_offloader(args).await,
        Command::Cluster(command) => cluster::run(command).await,
        Command::Cookie(command) => cookie::run(command).await,
        Command::Metadata(command) => copy::run(command).await,
        Command::Ledger(command) => ledger::run(command).await,
        Command::Offload(command) => offload::run(command).await,
        Command::Doctor(args) => Box::pin(crate::doctor::run(args)).await,
        Command::Status(remote) => status::run(remote).await,
        Command::Bench(command) => bench::run(command).await,
        Command::Store(command) => store::run(command).await,
        Command::Config(command) => config::run(command),
        Command::Version { output } => {
            version::run(output);
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "thermocline", &mut std::io::stdout());
            Ok(())
        }
    }
}
