//! The `thermocline` program. See the library of this crate for everything it does.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::args::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("thermocline: start the runtime: {error}");
            return ExitCode::from(1);
        }
    };
    let outcome = runtime.block_on(cli::run(cli));
    // Blocking reads of standard input cannot be cancelled; waiting for them would hang the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("thermocline: {fault}");
            ExitCode::from(fault.exit_code())
        }
    }
}
