//! `thermocline cookie …`.

use std::path::Path;
use std::sync::Arc;

use ledger::BookieId;
use metadata::admin::{self, Identity, Naming, State};
use metadata::{Bookies, Cookie, Cookies, MetadataStore, RemoveCookieError, StoredCookie, WriteError};
use serde_json::json;

use crate::args::{CookieCommand, Output};
use crate::confirm::confirm;
use crate::fault::chain;
use crate::{Fault, output, stores};

const PAGE: usize = 500;
const COOKIE_BYTES_MAX: u64 = 64 << 10;

pub(super) async fn run(command: CookieCommand) -> Result<(), Fault> {
    match command {
        CookieCommand::List { at, output } => list(&at.metadata, output).await,
        CookieCommand::Show { bookie, at, output } => show(&at.metadata, &id(&bookie)?, output).await,
        CookieCommand::Create { bookie, file, at, output } => create(&at.metadata, &id(&bookie)?, &file, output).await,
        CookieCommand::Delete { bookie, version, confirm, at, output } => {
            let order = Delete { version: version.as_deref(), confirm: confirm.as_deref() };
            delete(&at.metadata, &id(&bookie)?, order, output).await
        }
        CookieCommand::Generate { bookie, out, at } => generate(&at.metadata, &id(&bookie)?, out.as_deref()).await,
    }
}

fn id(text: &str) -> Result<BookieId, Fault> {
    BookieId::for_real_bookie(text).map_err(|error| Fault::usage(chain(&error)))
}

/// The store, and the cluster that must be in it.
async fn open(uri: &str) -> Result<(Arc<dyn MetadataStore>, Identity), Fault> {
    let store = stores::open(uri).await?;
    match admin::state(&*store).await.map_err(|error| stores::fault(uri, &error))? {
        State::Cluster(identity) => Ok((store, identity)),
        other => Err(Fault::usage(format!("metadata {}: {}", metadata::shown(uri), other.no_cluster()))),
    }
}

async fn stored(uri: &str, cookies: &Cookies, id: &BookieId) -> Result<StoredCookie, Fault> {
    let found = cookies.stored(id).await.map_err(|error| stores::fault(uri, &error))?;
    found.ok_or_else(|| {
        Fault::usage(format!(
            "metadata {}: there is no cookie of bookie {id}; `thermocline cookie list` shows those there are",
            metadata::shown(uri)
        ))
    })
}

async fn list(uri: &str, form: Output) -> Result<(), Fault> {
    let (store, _) = open(uri).await?;
    let fault = |error: metadata::Error| stores::fault(uri, &error);
    let registered = Bookies::new(store.clone()).list().await.map_err(fault)?;
    let state = |id: &BookieId| match registered.iter().find(|(found, ..)| found == id) {
        Some((_, _, true)) => "writable",
        Some((_, _, false)) => "read-only",
        None => "not registered",
    };
    let (cookies, mut all) = (Cookies::new(store), Vec::new());
    loop {
        let page = cookies.list(all.last().map(|last: &StoredCookie| &last.bookie), PAGE).await.map_err(fault)?;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    match form {
        Output::Json => {
            let rows: Vec<_> = all.iter().map(|found| as_json(found, Some(state(&found.bookie)))).collect();
            output::json(&json!(rows));
        }
        Output::Table if all.is_empty() => println!("no cookies: no bookie was ever set up in this cluster"),
        Output::Table => {
            let rows: Vec<Vec<String>> = all
                .iter()
                .map(|found| {
                    let instance = match found.read() {
                        Ok(cookie) => cookie.instance.unwrap_or_else(|| "(an old one names none)".to_owned()),
                        Err(error) => format!("UNREADABLE: {error}"),
                    };
                    let state = state(&found.bookie).to_owned();
                    vec![found.bookie.to_string(), found.version.to_string(), state, output::printable(&instance)]
                })
                .collect();
            println!("{}", output::table(&["bookie", "version", "state", "cluster"], &rows, &[1]));
        }
    }
    Ok(())
}

fn as_json(found: &StoredCookie, state: Option<&str>) -> serde_json::Value {
    let cookie = found.read();
    json!({
        "bookie": found.bookie.as_str(),
        // Text, as it is given to --version.
        "version": found.version.to_string(),
        "state": state,
        "instance_id": cookie.as_ref().ok().and_then(|cookie| cookie.instance.clone()),
        "journal_dirs": cookie.as_ref().ok().map(|cookie| &cookie.journal_dirs),
        "ledger_dirs": cookie.as_ref().ok().map(|cookie| &cookie.ledger_dirs),
        "unreadable": cookie.as_ref().err().map(|error| chain(error)),
        "text": String::from_utf8_lossy(&found.value),
    })
}

async fn show(uri: &str, id: &BookieId, form: Output) -> Result<(), Fault> {
    let (store, _) = open(uri).await?;
    let found = stored(uri, &Cookies::new(store), id).await?;
    match form {
        Output::Json => output::json(&as_json(&found, None)),
        Output::Table => {
            println!("cookie of bookie {id}, version {}\n", found.version);
            let text = String::from_utf8_lossy(&found.value);
            text.lines().for_each(|line| println!("{}", output::printable(line)));
            if let Err(error) = found.read() {
                println!("\nIt cannot be read: {error}");
            }
        }
    }
    Ok(())
}

async fn create(uri: &str, id: &BookieId, file: &Path, form: Output) -> Result<(), Fault> {
    let cookie = read(file)?;
    if cookie.bookie != *id {
        let text = format!("{} is the cookie of bookie {}, not of {id}", file.display(), cookie.bookie);
        return Err(Fault::usage(text));
    }
    let (store, identity) = open(uri).await?;
    if cookie.instance.as_deref() != Some(identity.instance.as_str()) {
        return Err(Fault::usage(format!(
            "{} is of cluster {}, but metadata {} holds {identity}: this is the wrong file or the wrong store",
            file.display(),
            cookie.instance.as_deref().unwrap_or("(none named)"),
            metadata::shown(uri)
        )));
    }
    let version = Cookies::new(store).create(&cookie).await.map_err(|error| match error {
        WriteError::Conflict(_) => Fault::usage(format!(
            "bookie {id} has a cookie already; look at it with `thermocline cookie show {id}`, remove it with `thermocline cookie delete {id}`"
        )),
        WriteError::NotDone(error) | WriteError::Unknown(error) => stores::fault(uri, &error),
    })?;
    match form {
        Output::Json => output::json(&json!({ "bookie": id.as_str(), "version": version.to_string() })),
        Output::Table => println!("stored the cookie of bookie {id}, version {version}"),
    }
    Ok(())
}

fn read(file: &Path) -> Result<Cookie, Fault> {
    let facts = std::fs::metadata(file).map_err(|error| Fault::usage(format!("{}: {error}", file.display())))?;
    if !facts.is_file() || facts.len() > COOKIE_BYTES_MAX {
        return Err(Fault::usage(format!("{}: not a cookie, which is a small file of text", file.display())));
    }
    let text = std::fs::read(file).map_err(|error| Fault::failed(format!("{}: {error}", file.display())))?;
    Cookie::decode(&text).map_err(|error| Fault::usage(format!("{}: {}", file.display(), chain(&error))))
}

pub(super) async fn ledgers_naming(store: &dyn MetadataStore, id: &BookieId) -> Result<Naming, metadata::Error> {
    let progress = output::progress_open("looking through ledgers");
    let naming = admin::ledgers_naming(store, id, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    naming
}

/// Who needs the bookie, as the beginning of a sentence; `None`: nobody. Pure.
pub(super) fn needed(id: &BookieId, naming: &Naming) -> Option<String> {
    if naming.count > 0 {
        let mut first: Vec<String> = naming.first.iter().map(ToString::to_string).collect();
        if naming.count > first.len() as u64 {
            first.push("…".to_owned());
        }
        let (count, many) = (output::count(naming.count), if naming.count == 1 { "" } else { "s" });
        return Some(format!("bookie {id} is a member of {count} ledger{many} ({})", first.join(", ")));
    }
    let unreadable = naming.unreadable;
    (unreadable > 0)
        .then(|| format!("{unreadable} ledgers cannot be read, so nobody knows whether they need bookie {id}"))
}

/// How a cookie is named for its removal.
struct Delete<'a> {
    version: Option<&'a str>,
    confirm: Option<&'a str>,
}

async fn delete(uri: &str, id: &BookieId, order: Delete<'_>, form: Output) -> Result<(), Fault> {
    let (store, _) = open(uri).await?;
    let cookies = Cookies::new(store.clone());
    let found = stored(uri, &cookies, id).await?;
    // In this order: a bookie that is not registered gets no new ledgers.
    cookies.refuse_registered(id).await.map_err(|error| removal_fault(&error))?;
    let naming = ledgers_naming(&*store, id).await.map_err(|error| stores::fault(uri, &error))?;
    if let Some(needed) = needed(id, &naming) {
        return Err(Fault::usage(format!(
            "{needed}. A blank bookie with this id would deny what the old one acknowledged and forget what it fenced; give the new \
             bookie another id. Nothing was changed"
        )));
    }
    match order.version {
        Some(version) if version == found.version.to_string() => {}
        Some(version) => {
            return Err(Fault::usage(format!(
                "the cookie of bookie {id} has version {}, not {version}: it is not the one you looked at. Nothing was changed",
                found.version
            )));
        }
        None => {
            let what = format!("The cookie of bookie {id} (version {}) will be removed.", found.version);
            confirm(&what, "bookie's id", id.as_str(), order.confirm)?;
        }
    }
    cookies.remove(id, found.version).await.map_err(|error| removal_fault(&error))?;
    match form {
        Output::Json => {
            output::json(&json!({ "bookie": id.as_str(), "version": found.version.to_string(), "deleted": true }));
        }
        Output::Table => println!(
            "removed the cookie of bookie {id}; a bookie with this id may now begin in an empty directory; never bring its old one back"
        ),
    }
    Ok(())
}

fn removal_fault(error: &RemoveCookieError) -> Fault {
    match error {
        RemoveCookieError::Registered { .. } | RemoveCookieError::Changed { .. } => {
            Fault::usage(format!("{}. Nothing was changed", chain(error)))
        }
        RemoveCookieError::NotDone(_) | RemoveCookieError::Unknown(_) => Fault::failed(chain(error)),
    }
}

async fn generate(uri: &str, id: &BookieId, out: Option<&Path>) -> Result<(), Fault> {
    use std::io::Write as _;
    let (_, identity) = open(uri).await?;
    let cookie = ::bookie::cookie_of(id, identity.instance.as_str()).map_err(|error| Fault::usage(chain(&error)))?;
    let text = cookie.encode();
    let Some(path) = out else {
        print!("{text}");
        return Ok(());
    };
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Fault::usage(format!("{}: {error}; name a new file with --out", path.display())))?;
    println!("wrote the cookie of bookie {id} to {}", path.display());
    Ok(())
}
