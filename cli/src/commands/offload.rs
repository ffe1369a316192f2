//! `thermocline offload …`: settle now, and how much is where.

use std::time::Duration;

use common::clock::Clock;
use proto::v1::{LedgerTier, OffloadLedgerRequest, OffloadResult, StatusRequest};
use serde_json::json;

use crate::Fault;
use crate::args::{OffloadCommand, Output};
use crate::output;
use crate::remote::{Remote, Service, refused};

pub(super) async fn run(command: OffloadCommand) -> Result<(), Fault> {
    match command {
        OffloadCommand::Now { ledgers, release, remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Tiering).await?;
            let bar = output::progress_count("settling", ledgers.len() as u64);
            let mut results = Vec::new();
            for ledger_id in ledgers {
                let request = OffloadLedgerRequest { ledger_id, release };
                let answer = node.tiering().offload_ledger(request).await;
                results
                    .push(answer.map_err(|status| refused(format_args!("ledger {ledger_id}"), &status))?.into_inner());
                bar.inc(1);
            }
            bar.finish_and_clear();
            print_results(&results, remote.output);
            Ok(())
        }
        OffloadCommand::Status { remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Tiering).await?;
            let status = node
                .tiering()
                .status(StatusRequest {})
                .await
                .map_err(|status| refused("status", &status))?
                .into_inner();
            let counts = status.ledgers.unwrap_or_default();
            match remote.output {
                Output::Json => output::json(&json!({
                    "ledgers": { "open": counts.open, "hot": counts.hot, "settled": counts.settled, "released": counts.released, "partly_released": counts.partly_released },
                    "hot_payload_bytes": status.hot_payload_bytes,
                    "cold_payload_bytes": status.cold_payload_bytes,
                    "objects": status.objects,
                    "object_bytes": status.object_bytes,
                    "offloads_running": status.offloads_running,
                    "cold_store": status.cold_store,
                    "releases_wait_for": status.releases_wait_for,
                })),
                Output::Table => {
                    let rows = vec![
                        vec!["open".into(), output::count(counts.open), "being written, on bookies".into()],
                        vec![
                            "hot".into(),
                            output::count(counts.hot),
                            format!("closed, on bookies only; {} hot in all", output::bytes(status.hot_payload_bytes)),
                        ],
                        vec!["settled".into(), output::count(counts.settled), settled_text(counts.partly_released)],
                        vec!["released".into(), output::count(counts.released), "in the object store only".into()],
                    ];
                    println!("{}", output::table(&["tier", "ledgers", ""], &rows, &[1]));
                    println!();
                    println!(
                        "{} objects, {} for {} of payload, in {}",
                        output::count(status.objects),
                        output::bytes(status.object_bytes),
                        output::bytes(status.cold_payload_bytes),
                        status.cold_store
                    );
                    if let Some(why) = &status.releases_wait_for {
                        println!("releases wait: {why}");
                    }
                }
            }
            Ok(())
        }
    }
}

fn settled_text(partly_released: u64) -> String {
    let both = "closed, on bookies and in the object store";
    match partly_released {
        0 => both.to_owned(),
        some => format!("{both}; {} of them partly released", output::count(some)),
    }
}

fn print_results(results: &[OffloadResult], form: Output) {
    match form {
        Output::Json => {
            let rows: Vec<_> = results.iter().map(result_json).collect();
            output::json(&json!(rows));
        }
        Output::Table => {
            let rows: Vec<Vec<String>> = results
                .iter()
                .map(|result| {
                    let cold = result.cold.clone().unwrap_or_default();
                    vec![
                        result.ledger_id.to_string(),
                        tier_word(result.tier()).to_owned(),
                        if result.uploaded { "written and verified" } else { "nothing to write" }.to_owned(),
                        output::bytes(cold.payload_bytes),
                        output::bytes(cold.object_bytes),
                        output::duration(Duration::from_millis(result.elapsed_ms)),
                        cold.object_key,
                    ]
                })
                .collect();
            println!(
                "{}",
                output::table(&["ledger", "tier", "object", "payload", "stored", "time", "key"], &rows, &[0, 3, 4, 5])
            );
            let now_ms = Clock::system().wall_ms();
            for result in results {
                if let Some(until_ms) = result.partly_released_until_ms {
                    println!("ledger {} is released {}", result.ledger_id, partly_released(until_ms, now_ms));
                }
            }
        }
    }
}

fn result_json(result: &OffloadResult) -> serde_json::Value {
    json!({
        "ledger_id": result.ledger_id,
        "tier": tier_word(result.tier()),
        "uploaded": result.uploaded,
        "released": result.released,
        "partly_released_until_ms": result.partly_released_until_ms,
        "elapsed_ms": result.elapsed_ms,
        "object_key": result.cold.as_ref().map(|cold| &cold.object_key),
        "object_bytes": result.cold.as_ref().map(|cold| cold.object_bytes),
        "payload_bytes": result.cold.as_ref().map(|cold| cold.payload_bytes),
        "entries": result.cold.as_ref().map(|cold| cold.entries),
    })
}

/// What the first step of a release in two has left, and when the second one is due.
pub(super) fn partly_released(until_ms: u64, now_ms: u64) -> String {
    let stays = "partly: one bookie of each write set stays for readers that opened the ledger before";
    match until_ms.checked_sub(now_ms) {
        Some(left) if left > 0 => format!("{stays}, for another {}", output::duration(Duration::from_millis(left))),
        _ => format!("{stays}; the rest is due now"),
    }
}

/// The word for a tier, the same in tables and JSON.
pub(super) fn tier_word(tier: LedgerTier) -> &'static str {
    match tier {
        LedgerTier::Unspecified => "unknown",
        LedgerTier::Hot => "hot",
        LedgerTier::Settled => "settled",
        LedgerTier::Released => "released",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_release_says_how_long_bookies_stay() {
        let hour_ms = 3_600_000;
        let text = partly_released(48 * hour_ms, hour_ms);
        assert!(text.ends_with("opened the ledger before, for another 47 h 0 min"), "{text}");
        for now_ms in [hour_ms, 2 * hour_ms] {
            let text = partly_released(hour_ms, now_ms);
            assert!(text.ends_with("; the rest is due now"), "{text}");
        }
    }
}
