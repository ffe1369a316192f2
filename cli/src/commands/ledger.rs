//! `thermocline ledger …`: plain gRPC clients, so they work on every deployment.

mod read;
mod write;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::clock::Clock;
use proto::v1::{
    CloseLedgerRequest, CreateLedgerRequest, DeleteLedgerRequest, DigestType, GetLedgerRequest, Ledger, LedgerState,
    ListLedgersRequest,
};
use serde_json::json;

use super::offload::{partly_released, tier_word};
use crate::Fault;
use crate::args::{CreateArgs, Digest, LedgerCommand, Output};
use crate::output;
use crate::remote::{Remote, Service, refused};

pub(super) async fn run(command: LedgerCommand) -> Result<(), Fault> {
    match command {
        LedgerCommand::Create(args) => create(args).await,
        LedgerCommand::Write(args) => write::run(args).await,
        LedgerCommand::Read(args) => read::run(args).await,
        LedgerCommand::Show { ledger, remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Ledgers).await?;
            let request = GetLedgerRequest { ledger_id: ledger };
            let answer = node.ledgers().get_ledger(request).await;
            let found = answer.map_err(|status| refused(format_args!("ledger {ledger}"), &status))?.into_inner();
            match remote.output {
                Output::Json => output::json(&ledger_json(&found)),
                Output::Table => println!("{}", show(&found)),
            }
            Ok(())
        }
        LedgerCommand::Ls { remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Ledgers).await?;
            list(&node, remote.output).await
        }
        LedgerCommand::Close { ledger, remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Ledgers).await?;
            let request = CloseLedgerRequest { ledger_id: ledger, password: Bytes::new() };
            let answer = node.ledgers().close_ledger(request).await;
            let closed = answer.map_err(|status| refused(format_args!("ledger {ledger}"), &status))?.into_inner();
            match remote.output {
                Output::Json => output::json(&ledger_json(&closed)),
                Output::Table => println!("ledger {ledger}: closed with {} entries", entries_text(&closed)),
            }
            Ok(())
        }
        LedgerCommand::Rm { ledger, remote } => {
            let node = Remote::connect_for(&remote.endpoint, Service::Ledgers).await?;
            let request = DeleteLedgerRequest { ledger_id: ledger };
            node.ledgers()
                .delete_ledger(request)
                .await
                .map_err(|status| refused(format_args!("ledger {ledger}"), &status))?;
            match remote.output {
                Output::Json => output::json(&json!({ "ledger_id": ledger, "deleted": true })),
                Output::Table => {
                    println!("ledger {ledger} deleted; the bookies free its space at their next collection")
                }
            }
            Ok(())
        }
    }
}

async fn create(args: CreateArgs) -> Result<(), Fault> {
    let mut custom = BTreeMap::new();
    for pair in &args.meta {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| Fault::usage(format!("--meta {pair}: write it as key=value")))?;
        custom.insert(key.to_owned(), Bytes::copy_from_slice(value.as_bytes()));
    }
    let request = CreateLedgerRequest {
        ensemble_size: args.ensemble,
        write_quorum: args.write_quorum,
        ack_quorum: args.ack_quorum,
        digest_type: match args.digest {
            Digest::Crc32c => DigestType::Crc32c,
            Digest::Crc32 => DigestType::Crc32,
            Digest::Hmac => DigestType::Hmac,
            Digest::Dummy => DigestType::Dummy,
        }
        .into(),
        password: Bytes::new(),
        custom,
    };
    let node = Remote::connect_for(&args.remote.endpoint, Service::Ledgers).await?;
    let answer = node.ledgers().create_ledger(request).await.map_err(|status| refused("create a ledger", &status))?;
    let ledger = answer.into_inner().ledger_id;
    match args.remote.output {
        Output::Json => output::json(&json!({ "ledger_id": ledger })),
        Output::Table => println!("{ledger}"),
    }
    Ok(())
}

async fn list(node: &Remote, form: Output) -> Result<(), Fault> {
    let mut page_token = String::new();
    let mut ledgers = Vec::new();
    loop {
        let request = ListLedgersRequest { page_size: 500, page_token };
        let page =
            node.ledgers().list_ledgers(request).await.map_err(|status| refused("list ledgers", &status))?.into_inner();
        ledgers.extend(page.ledgers);
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    match form {
        Output::Json => output::json(&json!(ledgers.iter().map(ledger_json).collect::<Vec<_>>())),
        Output::Table if ledgers.is_empty() => {
            println!("no ledgers yet; write one with `thermocline ledger write new < some.log`")
        }
        Output::Table => {
            let rows: Vec<Vec<String>> = ledgers
                .iter()
                .map(|ledger| {
                    vec![
                        ledger.ledger_id.to_string(),
                        state_word(ledger.state()).to_owned(),
                        tier_word(ledger.tier()).to_owned(),
                        entries_text(ledger),
                        if ledger.state() == LedgerState::Closed {
                            output::bytes(ledger.length)
                        } else {
                            String::new()
                        },
                        ledger.cold.as_ref().map(|cold| output::bytes(cold.object_bytes)).unwrap_or_default(),
                    ]
                })
                .collect();
            println!(
                "{}",
                output::table(&["ledger", "state", "tier", "entries", "payload", "object"], &rows, &[0, 3, 4, 5])
            );
        }
    }
    Ok(())
}

fn state_word(state: LedgerState) -> &'static str {
    match state {
        LedgerState::Unspecified => "unknown",
        LedgerState::Open => "open",
        LedgerState::InRecovery => "in recovery",
        LedgerState::Closed => "closed",
    }
}

fn digest_word(digest: DigestType) -> &'static str {
    match digest {
        DigestType::Unspecified => "not recorded",
        DigestType::Crc32 => "crc32",
        DigestType::Hmac => "hmac",
        DigestType::Crc32c => "crc32c",
        DigestType::Dummy => "dummy",
    }
}

fn entries_text(ledger: &Ledger) -> String {
    match (ledger.state(), ledger.last_entry_id) {
        (LedgerState::Closed, Some(last)) => output::count(last + 1),
        (LedgerState::Closed, None) => "0".to_owned(),
        _ => String::new(),
    }
}

fn show(ledger: &Ledger) -> String {
    let mut rows = vec![
        vec!["ledger".to_owned(), ledger.ledger_id.to_string()],
        vec!["state".to_owned(), state_word(ledger.state()).to_owned()],
        vec!["tier".to_owned(), tier_word(ledger.tier()).to_owned()],
        vec![
            "quorums".to_owned(),
            format!("E={} Qw={} Qa={}", ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum),
        ],
        vec!["digest".to_owned(), digest_word(ledger.digest_type()).to_owned()],
    ];
    if ledger.state() == LedgerState::Closed {
        rows.push(vec!["entries".to_owned(), entries_text(ledger)]);
        rows.push(vec!["payload".to_owned(), output::bytes(ledger.length)]);
    }
    for segment in &ledger.segments {
        rows.push(vec![format!("members from {}", segment.first_entry_id), segment.bookies.join(", ")]);
    }
    if let Some(until_ms) = ledger.partly_released_until_ms {
        rows.push(vec!["release".to_owned(), partly_released(until_ms, Clock::system().wall_ms())]);
    }
    let mut custom: Vec<_> = ledger.custom.iter().collect();
    custom.sort();
    for (key, value) in custom {
        let text = output::printable(&String::from_utf8_lossy(value));
        rows.push(vec![format!("meta {}", output::printable(key)), text]);
    }
    if let Some(cold) = &ledger.cold {
        rows.push(vec!["object".to_owned(), cold.object_key.clone()]);
        rows.push(vec![
            "stored".to_owned(),
            format!(
                "{} for {} of payload in {} entries",
                output::bytes(cold.object_bytes),
                output::bytes(cold.payload_bytes),
                output::count(cold.entries)
            ),
        ]);
        rows.push(vec!["object crc32c".to_owned(), format!("{:08x}", cold.object_crc32c)]);
    }
    output::table(&["", ""], &rows, &[]).trim_start().to_owned()
}

fn ledger_json(ledger: &Ledger) -> serde_json::Value {
    let mut custom: Vec<_> = ledger.custom.iter().map(|(key, value)| (key, String::from_utf8_lossy(value))).collect();
    custom.sort();
    let custom: serde_json::Map<_, _> = custom.into_iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "ledger_id": ledger.ledger_id,
        "state": state_word(ledger.state()),
        "tier": tier_word(ledger.tier()),
        "last_entry_id": ledger.last_entry_id,
        "length": ledger.length,
        "ensemble_size": ledger.ensemble_size,
        "write_quorum": ledger.write_quorum,
        "ack_quorum": ledger.ack_quorum,
        "digest": digest_word(ledger.digest_type()),
        "segments": ledger.segments.iter().map(|segment| json!({
            "first_entry_id": segment.first_entry_id, "bookies": segment.bookies,
        })).collect::<Vec<_>>(),
        "custom": custom,
        "partly_released_until_ms": ledger.partly_released_until_ms,
        "cold": ledger.cold.as_ref().map(|cold| json!({
            "object_key": cold.object_key,
            "object_bytes": cold.object_bytes,
            "object_crc32c": format!("{:08x}", cold.object_crc32c),
            "entries": cold.entries,
            "payload_bytes": cold.payload_bytes,
            "commit_counter": cold.commit_counter,
        })),
    })
}
