//! `thermocline bookie format`.

use std::sync::Arc;

use ::bookie::Wipe;
use ledger::BookieId;
use metadata::admin::{self, Naming, State};
use metadata::{Cookies, MetadataStore, StoredCookie, layout};
use serde_json::json;

use super::cookie::{ledgers_naming, needed};
use crate::args::{BookieFormatArgs, Output};
use crate::confirm::confirm;
use crate::fault::chain;
use crate::{Fault, output, stores};

/// What metadata says of the bookie.
struct Known {
    store: Arc<dyn MetadataStore>,
    uri: String,
    registered: bool,
    naming: Naming,
    cookie: Option<StoredCookie>,
}

pub(super) async fn run(args: BookieFormatArgs) -> Result<(), Fault> {
    let dir = args.dir.display();
    let wipe =
        Wipe::prepare(&args.dir).await.map_err(|error| Fault::usage(format!("--dir {dir}: {}", chain(&error))))?;
    let id = wipe.cookie().bookie.clone();
    let known = match &args.metadata {
        Some(uri) => Some(look(uri, &id, wipe.cookie().instance.as_deref()).await?),
        None => None,
    };
    let refusal = refusal(&id, known.as_ref(), args.force);
    if args.dry_run {
        tell_plan(&args, &wipe, known.as_ref(), refusal.as_deref());
        return refusal.map_or(Ok(()), |refusal| Err(Fault::usage(refusal)));
    }
    if let Some(refusal) = refusal {
        return Err(Fault::usage(format!("{refusal}. Nothing was changed")));
    }
    let (files, bytes) = (wipe.files() as u64, wipe.allocated_bytes());
    // A blank bookie with the id of one that ledgers name would deny what that one acknowledged: the id is retired.
    let retired = known.as_ref().and_then(|known| needed(&id, &known.naming));
    let cookie = known.as_ref().and_then(|known| known.cookie.as_ref()).filter(|_| retired.is_none());
    let what = format!(
        "All data of bookie {id} in {dir} ({} files, {}){} will be removed.",
        output::count(files),
        output::bytes(bytes),
        if cookie.is_some() { " and its cookie" } else { "" }
    );
    confirm(&what, "bookie's id", id.as_str(), args.confirm.as_deref())?;

    let failed = |error: ::bookie::Error| Fault::failed(format!("{}; the same command goes on", chain(&error)));
    let wiped = wipe.remove().await.map_err(failed)?;
    if let (Some(known), Some(cookie)) = (&known, cookie) {
        let removed = Cookies::new(known.store.clone()).remove(&id, cookie.version).await;
        removed.map_err(|error| {
            Fault::failed(format!("{}. The data is removed; the same command goes on", chain(&error)))
        })?;
    }
    wiped.finish().await.map_err(failed)?;
    match args.output {
        Output::Json => output::json(&json!({
            "bookie": id.as_str(), "dir": dir.to_string(), "dry_run": false, "files": files, "bytes": bytes,
            "cookie_deleted": cookie.is_some(), "id_retired": retired.is_some(),
        })),
        Output::Table => {
            println!("removed bookie {id} from {dir}: {} files, {}", output::count(files), output::bytes(bytes));
            if let Some(needed) = retired {
                println!(
                    "{needed}: its cookie stays, so that no blank bookie takes this id; start the new one under another id"
                );
                return Ok(());
            }
            match (&known, cookie) {
                (Some(known), Some(_)) => println!("removed its cookie from {}", metadata::shown(&known.uri)),
                (Some(_), None) => println!("the cluster had no cookie of it"),
                (None, _) => println!("its cookie, if the cluster has one, stays: `thermocline cookie delete {id}`"),
            }
        }
    }
    Ok(())
}

/// What the cluster knows. Registration first, by proof: a bookie that is not registered gets no new ledgers, so the listing that
/// follows misses none.
async fn look(uri: &str, id: &BookieId, instance: Option<&str>) -> Result<Known, Fault> {
    let store = stores::open(uri).await?;
    let fault = |error: metadata::Error| stores::fault(uri, &error);
    match admin::state(&*store).await.map_err(fault)? {
        State::Cluster(found) if instance == Some(found.instance.as_str()) => {}
        State::Cluster(found) => {
            return Err(Fault::usage(format!(
                "the directory is of cluster {}, but metadata {} holds {found}: this is the wrong directory or the wrong store",
                instance.unwrap_or("(none named)"),
                metadata::shown(uri)
            )));
        }
        other => {
            return Err(Fault::usage(format!(
                "metadata {}: {}. If the bookie's cluster is gone, leave --metadata out and say --force",
                metadata::shown(uri),
                other.no_cluster()
            )));
        }
    }
    let mut registered = false;
    for key in [layout::available_key(id), layout::readonly_key(id)] {
        registered |= store.get_quorum(&key).await.map_err(fault)?.is_some();
    }
    let naming = ledgers_naming(&*store, id).await;
    let cookie = Cookies::new(store.clone()).stored(id).await.map_err(fault)?;
    Ok(Known { store, uri: uri.to_owned(), registered, naming: naming.map_err(fault)?, cookie })
}

/// Why it is not done; pure.
fn refusal(id: &BookieId, known: Option<&Known>, force: bool) -> Option<String> {
    match known {
        Some(known) if known.registered => Some(format!(
            "bookie {id} is registered: stop it first (the registration of one that died ends by itself, in seconds)"
        )),
        _ if force => None,
        None => Some(format!(
            "whether ledgers need bookie {id} is known only to its cluster: name it with --metadata, or say --force"
        )),
        Some(known) => naming_refusal(id, &known.naming),
    }
}

fn naming_refusal(id: &BookieId, naming: &Naming) -> Option<String> {
    let advice = "what it holds of them would be lost, and its id with it. Settle and release them, or say --force";
    needed(id, naming).map(|needed| format!("{needed}: {advice}"))
}

fn tell_plan(args: &BookieFormatArgs, wipe: &Wipe, known: Option<&Known>, refusal: Option<&str>) {
    let id = &wipe.cookie().bookie;
    let ledgers = known.map(|known| known.naming.count);
    let cookie = known.map(|known| known.cookie.is_some());
    match args.output {
        Output::Json => output::json(&json!({
            "bookie": id.as_str(), "dir": args.dir.display().to_string(), "dry_run": true,
            "files": wipe.files(), "bytes": wipe.allocated_bytes(), "interrupted": wipe.was_interrupted(),
            "registered": known.map(|known| known.registered), "ledgers": ledgers, "cookie": cookie, "refused": refusal,
        })),
        Output::Table => {
            let row = |name: &str, value: String| vec![name.to_owned(), value];
            let unknown = || "unknown without --metadata".to_owned();
            let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
            let rows = vec![
                row("bookie", id.to_string()),
                row("directory", args.dir.display().to_string()),
                row(
                    "files",
                    format!("{}, {}", output::count(wipe.files() as u64), output::bytes(wipe.allocated_bytes())),
                ),
                row("cut short before", yes(wipe.was_interrupted())),
                row("registered", known.map_or_else(unknown, |known| yes(known.registered))),
                row("member of ledgers", ledgers.map_or_else(unknown, output::count)),
                row("cookie", cookie.map_or_else(unknown, yes)),
            ];
            println!("{}", output::table(&["", ""], &rows, &[]).trim_start());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(count: u64, first: &[u64], unreadable: u64) -> Naming {
        let first = first.iter().map(|id| ledger::LedgerId::new(*id).unwrap()).collect();
        Naming { count, first, unreadable }
    }

    #[test]
    fn ledgers_that_need_it_keep_it() {
        let id = BookieId::new("b1").unwrap();
        assert_eq!(naming_refusal(&id, &naming(0, &[], 0)), None);
        let few = naming_refusal(&id, &naming(2, &[3, 4], 0)).unwrap();
        assert!(few.contains("bookie b1 is a member of 2 ledgers (3, 4):"), "{few}");
        let many = naming_refusal(&id, &naming(9000, &[1, 2, 3, 4, 5], 1)).unwrap();
        assert!(many.contains("9,000 ledgers") && many.contains("5, …)"), "{many}");
        assert!(naming_refusal(&id, &naming(0, &[], 1)).unwrap().contains("nobody knows"));
        assert!(refusal(&id, None, false).unwrap().contains("--metadata"));
        assert_eq!(refusal(&id, None, true), None);
    }
}
