//! `thermocline version`.

use serde_json::json;

use crate::args::Output;
use crate::output;

pub(super) fn run(form: Output) {
    let version = env!("CARGO_PKG_VERSION");
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    match form {
        Output::Table => {
            println!("thermocline {version} ({profile} build, {} {})", std::env::consts::OS, std::env::consts::ARCH)
        }
        Output::Json => output::json(&json!({
            "version": version,
            "profile": profile,
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
        })),
    }
}
