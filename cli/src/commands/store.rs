//! `thermocline store …`.

use std::io::IsTerminal;

use cold::{Capability, ColdStore, Finding, StoreOptions, StoreReport};
use common::clock::Clock;
use common::rng::Rng;
use serde_json::json;

use crate::args::{Output, StoreCheckArgs, StoreCommand};
use crate::fault::chain;
use crate::{Fault, output};

pub(super) async fn run(command: StoreCommand) -> Result<(), Fault> {
    match command {
        StoreCommand::Check(args) => check(args).await,
    }
}

async fn check(args: StoreCheckArgs) -> Result<(), Fault> {
    let policy = cold::policy(&args.url);
    if args.policy {
        let text = policy.ok_or_else(|| {
            Fault::usage(format!(
                "{}: there is no policy for this kind of store; name s3, gs, az or file",
                args.url.scheme()
            ))
        })?;
        print!("{text}");
        return Ok(());
    }
    let store = ColdStore::open(&args.url, StoreOptions::default(), Rng::from_os())
        .map_err(|error| Fault::usage(chain(&error)))?;
    let report = store.probe(&Clock::system(), begin).await;
    if std::io::stderr().is_terminal() {
        eprint!("\r\u{1b}[K");
    }
    match args.output {
        Output::Json => output::json(&to_json(&report)),
        Output::Table => {
            println!("{}", to_table(&report));
            if let Some(policy) = policy {
                println!("\nThe least these credentials need (store check --policy prints only this):\n\n{policy}");
            }
        }
    }
    let missing: Vec<&str> = report
        .findings
        .iter()
        .filter(|(capability, finding)| capability.is_needed() && !finding.works())
        .map(|(capability, _)| capability.name())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::failed(format!("{} cannot be used: it lacks {}", report.store, missing.join(", "))))
}

/// Progress, where somebody looks: the step on one line that the next one takes.
fn begin(capability: Capability) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\u{1b}[Kchecking: {}", capability.name());
    }
}

fn result_of(capability: Capability, finding: &Finding) -> &'static str {
    match finding {
        Finding::Works(_) => "ok",
        Finding::Lacks(_) if capability.is_needed() => "MISSING",
        Finding::Lacks(_) => "lacks",
        Finding::Skipped(_) => "not tried",
    }
}

fn to_table(report: &StoreReport) -> String {
    let rows: Vec<Vec<String>> = report
        .findings
        .iter()
        .map(|(capability, finding)| {
            let need = if capability.is_needed() { "needed" } else { "advised" };
            vec![
                capability.name().to_owned(),
                result_of(*capability, finding).to_owned(),
                need.to_owned(),
                capability.purpose().to_owned(),
            ]
        })
        .collect();
    let mut text = format!("{}\n\n{}\n", report.store, output::table(&["capability", "result", "", "for"], &rows, &[]));
    for (capability, finding) in &report.findings {
        if !finding.detail().is_empty() {
            text.push_str(&format!("\n{}: {}", capability.name(), output::printable(finding.detail())));
        }
    }
    text.push_str(&format!("\n\n{}", verdict(report)));
    text
}

fn verdict(report: &StoreReport) -> String {
    let mut text = if report.is_usable() {
        "Thermocline can use this store.".to_owned()
    } else {
        "Thermocline cannot use this store: see MISSING above.".to_owned()
    };
    text.push_str(
        " Unfinished uploads are not looked for: add a rule to the bucket that ends those older than 7 days, or they are paid for.",
    );
    if report.left_behind.is_empty() {
        text.push_str(" Nothing of this check was left behind.");
    } else {
        text.push_str(&format!(" LEFT BEHIND, remove it by hand: {}", report.left_behind.join(", ")));
    }
    text
}

fn to_json(report: &StoreReport) -> serde_json::Value {
    let checks: Vec<serde_json::Value> = report
        .findings
        .iter()
        .map(|(capability, finding)| {
            let result = match finding {
                Finding::Works(_) => "ok",
                Finding::Lacks(_) => "lacks",
                Finding::Skipped(_) => "not-tried",
            };
            json!({
                "capability": capability.name(),
                "result": result,
                "needed": capability.is_needed(),
                "purpose": capability.purpose(),
                "detail": finding.detail(),
            })
        })
        .collect();
    json!({
        "store": report.store,
        "usable": report.is_usable(),
        "checks": checks,
        "round_trip_p50_ms": report.round_trip_p50.map(|time| time.as_secs_f64() * 1e3),
        "clock_ahead_ms": report.clock_ahead_ms,
        "left_behind": report.left_behind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(of: impl Fn(Capability) -> Finding) -> StoreReport {
        StoreReport {
            store: "s3://bucket/".to_owned(),
            findings: Capability::ALL.into_iter().map(|capability| (capability, of(capability))).collect(),
            round_trip_p50: None,
            clock_ahead_ms: Some(0),
            left_behind: Vec::new(),
        }
    }

    #[test]
    fn what_is_needed_decides() {
        let works = || Finding::Works(String::new());
        let all = report(|_| works());
        assert!(to_table(&all).contains("can use this store") && to_json(&all)["usable"] == true);
        let advised =
            report(
                |capability| {
                    if capability == Capability::CreateOnly { Finding::Lacks("IGNORED".to_owned()) } else { works() }
                },
            );
        let text = to_table(&advised);
        assert!(text.contains("can use this store") && text.contains("conditional write: IGNORED"), "{text}");
        let mut needed =
            report(
                |capability| {
                    if capability == Capability::Multipart { Finding::Lacks("no".to_owned()) } else { works() }
                },
            );
        needed.left_behind.push("a/b".to_owned());
        let text = to_table(&needed);
        assert!(text.contains("MISSING") && text.contains("cannot use") && text.contains("LEFT BEHIND"), "{text}");
        assert_eq!(to_json(&needed)["usable"], false);
    }
}
