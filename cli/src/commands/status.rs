//! `thermocline status`.

use std::time::Duration;

use proto::v1::StatusRequest;
use serde_json::json;

use crate::Fault;
use crate::args::{Output, RemoteArgs};
use crate::output;
use crate::remote::{Remote, Service, refused};

pub(super) async fn run(remote: RemoteArgs) -> Result<(), Fault> {
    let node = Remote::connect_for(&remote.endpoint, Service::Tiering).await?;
    let status =
        node.tiering().status(StatusRequest {}).await.map_err(|status| refused("status", &status))?.into_inner();
    let counts = status.ledgers.unwrap_or_default();
    match remote.output {
        Output::Json => {
            let bookies: Vec<_> = status
                .bookies
                .iter()
                .map(|bookie| json!({ "id": bookie.bookie_id, "address": bookie.address, "writable": bookie.writable, "disk_bytes": bookie.disk_bytes }))
                .collect();
            let budgets: Vec<_> = status
                .budgets
                .iter()
                .map(|budget| json!({ "name": budget.name, "used_bytes": budget.used_bytes, "limit_bytes": budget.limit_bytes, "peak_bytes": budget.peak_bytes }))
                .collect();
            output::json(&json!({
                "instance_id": status.instance_id,
                "version": status.version,
                "uptime_ms": status.uptime_ms,
                "bookies": bookies,
                "ledgers": { "open": counts.open, "hot": counts.hot, "settled": counts.settled, "released": counts.released, "partly_released": counts.partly_released },
                "objects": status.objects,
                "object_bytes": status.object_bytes,
                "cold_store": status.cold_store,
                "budgets": budgets,
            }));
        }
        Output::Table => {
            println!(
                "cluster {}, version {}, up {}",
                status.instance_id,
                status.version,
                output::duration(Duration::from_millis(status.uptime_ms))
            );
            println!(
                "ledgers: {} open, {} hot, {} settled, {} released; {} objects ({}) in {}",
                counts.open,
                counts.hot,
                counts.settled,
                counts.released,
                status.objects,
                output::bytes(status.object_bytes),
                status.cold_store
            );
            let rows: Vec<Vec<String>> = status
                .bookies
                .iter()
                .map(|bookie| {
                    vec![
                        bookie.bookie_id.clone(),
                        bookie.address.clone(),
                        if bookie.writable { "writable" } else { "read-only" }.to_owned(),
                        bookie.disk_bytes.map_or_else(|| "?".to_owned(), output::bytes),
                    ]
                })
                .collect();
            println!("\n{}", output::table(&["bookie", "address", "state", "disk"], &rows, &[3]));
            let rows: Vec<Vec<String>> = status
                .budgets
                .iter()
                .map(|budget| {
                    vec![
                        budget.name.clone(),
                        output::bytes(budget.used_bytes),
                        output::bytes(budget.peak_bytes),
                        output::bytes(budget.limit_bytes),
                    ]
                })
                .collect();
            println!("\n{}", output::table(&["memory budget", "used", "peak", "limit"], &rows, &[1, 2, 3]));
        }
    }
    Ok(())
}
