//! `thermocline cluster show`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ledger::BookieId;
use metadata::admin::{self, Census, Identity, Kind, State};
use metadata::{BookieInfo, Bookies, Cookies, GatewayInfo, Gateways, MetadataStore, UnderReplication};
use serde_json::json;

use super::name_json;
use crate::args::{ClusterShowArgs, Output};
use crate::{Fault, output, stores};

const PAGE: usize = 500;

/// All that is shown.
struct View {
    identity: Identity,
    metadata: String,
    layout: String,
    bookies: BTreeMap<BookieId, Place>,
    gateways: Vec<GatewayInfo>,
    repair: Repair,
    census: Census,
}

/// What auto-recovery, if anybody runs it, says of itself.
struct Repair {
    /// The bookie beside which the auditor runs.
    auditor: Option<String>,
    is_disabled: bool,
}

impl Repair {
    fn sentence(&self, lacking: u64) -> String {
        let auditor = match &self.auditor {
            None => "nobody audits".to_owned(),
            Some(auditor) => format!("auditor {}", output::printable(auditor)),
        };
        let off = if self.is_disabled { ", SWITCHED OFF" } else { "" };
        format!("{auditor}{off}, ledgers that lack replicas: {}", output::count(lacking))
    }
}

/// Where a bookie is.
enum Place {
    Writable(String),
    ReadOnly(String),
    /// Only its cookie is there.
    Down,
}

impl Place {
    fn word(&self) -> &'static str {
        match self {
            Self::Writable(_) => "writable",
            Self::ReadOnly(_) => "read-only",
            Self::Down => "cookie only",
        }
    }

    fn address(&self) -> Option<&str> {
        match self {
            Self::Writable(address) | Self::ReadOnly(address) => Some(address),
            Self::Down => None,
        }
    }
}

pub(super) async fn run(args: ClusterShowArgs) -> Result<(), Fault> {
    let uri = &args.at.metadata;
    let store = stores::open(uri).await?;
    let fault = |error: metadata::Error| stores::fault(uri, &error);
    let identity = match admin::state(&*store).await.map_err(fault)? {
        State::Cluster(identity) => identity,
        other => return Err(Fault::usage(format!("metadata {}: {}", metadata::shown(uri), other.no_cluster()))),
    };
    let view = look(&store, identity, metadata::shown(uri)).await.map_err(fault)?;
    match args.output {
        Output::Json => output::json(&to_json(&view)),
        Output::Table => println!("{}", to_table(&view)),
    }
    Ok(())
}

async fn look(store: &Arc<dyn MetadataStore>, identity: Identity, metadata: String) -> Result<View, metadata::Error> {
    let registered = Bookies::new(store.clone()).list().await?;
    // Cold ids stand for the object store, not for a bookie.
    let real = registered.into_iter().filter(|(id, ..)| !ledger::is_cold(id));
    let mut bookies: BTreeMap<BookieId, Place> = real
        .map(|(id, BookieInfo { address, .. }, writable)| {
            (id, if writable { Place::Writable(address) } else { Place::ReadOnly(address) })
        })
        .collect();
    let (cookies, mut after) = (Cookies::new(store.clone()), None);
    loop {
        let page = cookies.list(after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.bookie.clone());
        for cookie in page {
            bookies.entry(cookie.bookie).or_insert(Place::Down);
        }
    }
    let layout = admin::layout_name(&**store).await?.unwrap_or_default();
    let gateways = Gateways::new(store.clone()).list().await?;
    let under = UnderReplication::new(store.clone());
    let repair = Repair { auditor: under.auditor().await?, is_disabled: under.is_disabled().await? };
    let progress = output::progress_open("counting keys");
    let census = admin::census(&**store, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    Ok(View { identity, metadata, layout, bookies, gateways, repair, census: census? })
}

fn to_table(view: &View) -> String {
    let (ledgers, keys) = (view.census.ledgers, &view.census.keys);
    let count = output::count;
    let mut states = format!(
        "{}: {} open, {} in recovery, {} hot, {} settled, {} released",
        count(keys.of(Kind::Ledger)),
        count(ledgers.open),
        count(ledgers.in_recovery),
        count(ledgers.hot),
        count(ledgers.settled),
        count(ledgers.released)
    );
    if ledgers.unreadable > 0 {
        states.push_str(&format!(", {} UNREADABLE", count(ledgers.unreadable)));
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = vec![
        row("cluster", view.identity.name.as_ref().map_or_else(|| "(without a name)".to_owned(), ToString::to_string)),
        row("identity", view.identity.instance.to_string()),
        row("metadata", view.metadata.clone()),
        row("layout", output::printable(&view.layout)),
        row("ledgers", states),
        row(
            "attempts",
            format!("{} running, {} abandoned", count(keys.of(Kind::Attempt)), count(keys.of(Kind::Abandoned))),
        ),
        row("objects", format!("{} in the catalog", count(keys.of(Kind::Catalog)))),
        row("offloaders", count(keys.of(Kind::Owner))),
        row("auto-recovery", view.repair.sentence(keys.of(Kind::UnderReplicated))),
        row("keys", format!("{}, values of {}", count(keys.total()), output::bytes(view.census.bytes))),
    ];
    let mut text = output::table(&["", ""], &rows, &[]).trim_start().to_owned();
    let rows: Vec<Vec<String>> = view
        .bookies
        .iter()
        .map(|(id, place)| {
            vec![id.to_string(), place.word().to_owned(), output::printable(place.address().unwrap_or(""))]
        })
        .collect();
    text.push_str("\n\n");
    text.push_str(&match rows.is_empty() {
        true => "no bookie yet; start one with `thermocline bookie`".to_owned(),
        false => output::table(&["bookie", "state", "address"], &rows, &[]),
    });
    let rows: Vec<Vec<String>> = view
        .gateways
        .iter()
        .map(|gateway| vec![output::printable(&gateway.id), output::printable(&gateway.endpoint)])
        .collect();
    if !rows.is_empty() {
        text.push_str(&format!("\n\n{}", output::table(&["gateway", "endpoint"], &rows, &[])));
    }
    text
}

fn to_json(view: &View) -> serde_json::Value {
    let (ledgers, keys) = (view.census.ledgers, &view.census.keys);
    let bookies: Vec<_> = view
        .bookies
        .iter()
        .map(|(id, place)| json!({ "id": id.as_str(), "state": place.word(), "address": place.address() }))
        .collect();
    let gateways: Vec<_> =
        view.gateways.iter().map(|gateway| json!({ "id": gateway.id, "endpoint": gateway.endpoint })).collect();
    json!({
        "instance_id": view.identity.instance.as_str(),
        "name": name_json(&view.identity),
        "metadata": view.metadata,
        "driver": view.metadata.split(':').next(),
        "layout": view.layout,
        "bookies": bookies,
        "gateways": gateways,
        "offloaders": keys.of(Kind::Owner),
        "ledgers": {
            "open": ledgers.open, "in_recovery": ledgers.in_recovery, "hot": ledgers.hot, "settled": ledgers.settled,
            "released": ledgers.released, "unreadable": ledgers.unreadable,
        },
        "attempts": { "running": keys.of(Kind::Attempt), "abandoned": keys.of(Kind::Abandoned) },
        "objects": keys.of(Kind::Catalog),
        "auto_recovery": {
            "auditor": view.repair.auditor, "disabled": view.repair.is_disabled,
            "under_replicated": keys.of(Kind::UnderReplicated),
        },
        "keys": keys.total(),
        "value_bytes": view.census.bytes,
    })
}
