//! Does with the crate `bookkeeper-client` what its users do, against a cluster that runs.
//!
//! ```text
//! rust-client URI check [BOOKIES]          every scenario; one line each, as test harnesses print them; exit code 1 when one failed
//! rust-client URI write COUNT [BOOKIES]    a closed ledger of the lines `line 0` to `line COUNT-1`; prints its id
//! rust-client URI open COUNT [BOOKIES]     the same, left open, as by a writer that died
//! rust-client URI read LEDGER [BOOKIES]    the entries of a closed ledger, a line each
//! rust-client URI recover LEDGER [BOOKIES] closes a ledger whose writer is gone, then as `read`
//! ```
//!
//! `BOOKIES` are the bookies' addresses, with commas, for metadata in which the crate does not find them itself.
//!
//! Entries are short: a reply that does not arrive in one piece of 4 KiB stops the crate's reader.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bookkeeper_client::prelude::*;

/// For each scenario and command. The crate has no time-outs of its own.
const DEADLINE: Duration = Duration::from_secs(60);
const PASSWORD: &[u8] = b"passwd";
const DIGESTS: [DigestType; 4] = [DigestType::CRC32C, DigestType::CRC32, DigestType::MAC, DigestType::DUMMY];

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rust-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (uri, command, rest) = match arguments[..] {
        [uri, "check", ref rest @ ..] => (uri, Command::Check, rest),
        [uri, "write", count, ref rest @ ..] => (uri, Command::Write { count: count.parse()?, close: true }, rest),
        [uri, "open", count, ref rest @ ..] => (uri, Command::Write { count: count.parse()?, close: false }, rest),
        [uri, "read", ledger, ref rest @ ..] => (uri, Command::Read { ledger: ledger.parse()?, recover: false }, rest),
        [uri, "recover", ledger, ref rest @ ..] => {
            (uri, Command::Read { ledger: ledger.parse()?, recover: true }, rest)
        }
        _ => bail!(
            "usage: rust-client URI check | write COUNT | open COUNT | read LEDGER | recover LEDGER, then [BOOKIES]"
        ),
    };
    let mut configuration = Configuration::new(uri.to_owned());
    if let [bookies] = rest {
        configuration = configuration.bookies((*bookies).to_owned());
    }
    let client = within("connect", BookKeeper::new(configuration)).await?;
    match command {
        Command::Check => return Ok(check(&client).await),
        Command::Write { count, close } => println!("{}", write(&client, count, close).await?),
        Command::Read { ledger, recover } => {
            for line in read(&client, ledger, recover).await? {
                println!("{}", String::from_utf8(line)?);
            }
        }
    }
    Ok(true)
}

enum Command {
    Check,
    Write { count: u64, close: bool },
    Read { ledger: i64, recover: bool },
}

async fn within<T>(what: &str, doing: impl Future<Output = Result<T, BkError<BkErrorKind>>>) -> Result<T> {
    let done = tokio::time::timeout(DEADLINE, doing).await;
    done.with_context(|| format!("{what}: no answer in {DEADLINE:?}"))?
        .map_err(|error| anyhow::anyhow!("{what}: {error:?}"))
}

/// The kind of error that something must end with.
async fn refused<T>(what: &str, doing: impl Future<Output = Result<T, BkError<BkErrorKind>>>) -> Result<BkErrorKind> {
    match tokio::time::timeout(DEADLINE, doing).await.with_context(|| format!("{what}: no answer in {DEADLINE:?}"))? {
        Ok(_) => bail!("{what}: it was not refused"),
        Err(error) => Ok(error.kind()),
    }
}

fn entry(id: i64) -> EntryId {
    EntryId::try_from(id).expect("not negative")
}

fn line(number: u64) -> Vec<u8> {
    format!("line {number}").into_bytes()
}

fn options(digest: DigestType, password: &[u8]) -> CreateOptions {
    CreateOptions::new(3, 2, 2).digest(digest, Some(password.to_vec()))
}

async fn append(ledger: &LedgerAppender, count: u64) -> Result<()> {
    for number in 0..count {
        let at = within("append", ledger.append(&line(number))).await?;
        ensure!(at == entry(number as i64), "entry {number} was appended as {at:?}");
    }
    Ok(())
}

async fn write(client: &BookKeeper, count: u64, close: bool) -> Result<LedgerId> {
    let mut ledger = within("create", client.create_ledger(options(DigestType::CRC32C, b""))).await?;
    append(&ledger, count).await?;
    if close {
        within("close", ledger.close(CloseOptions::default())).await?;
    }
    Ok(ledger.id())
}

async fn read(client: &BookKeeper, ledger: i64, recover: bool) -> Result<Vec<Vec<u8>>> {
    let open = OpenOptions::new(DigestType::CRC32C, Some(b""));
    let open = if recover { open.recovery() } else { open };
    let reader = within("open", client.open_ledger(LedgerId::try_from(ledger)?, &open)).await?;
    ensure!(reader.closed(), "the ledger is not closed");
    match reader.last_add_confirmed() {
        EntryId::INVALID => Ok(Vec::new()),
        last => within("read", reader.read(EntryId::MIN, last, None)).await,
    }
}

/// Runs every scenario, whatever the others came to; false when one failed.
async fn check(client: &BookKeeper) -> bool {
    let mut counts = (0, 0);
    let mut tell = |name: &str, came_to: Result<()>| match came_to {
        Ok(()) => {
            counts.0 += 1;
            println!("test {name} ... ok");
        }
        Err(error) => {
            counts.1 += 1;
            println!("test {name} ... FAILED: {error:#}");
        }
    };
    for digest in DIGESTS {
        tell(&format!("{digest:?}: written and read"), written_and_read(client, digest).await);
        tell(&format!("{digest:?}: recovered, and the writer is fenced"), recovered(client, digest).await);
    }
    tell("an open ledger is followed", followed(client).await);
    tell("the explicit last confirmed is read", explicit_lac(client).await);
    tell("deferred sync, then force", forced(client).await);
    tell("an empty ledger", empty(client).await);
    tell("a wrong password", wrong_password(client).await);
    tell("a deleted ledger", deleted(client).await);
    println!("\n{} passed, {} failed", counts.0, counts.1);
    counts.1 == 0
}

const COUNT: u64 = 50;

fn lines() -> Vec<Vec<u8>> {
    (0..COUNT).map(line).collect()
}

async fn written_and_read(client: &BookKeeper, digest: DigestType) -> Result<()> {
    let mut ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    append(&ledger, COUNT).await?;
    within("close", ledger.close(CloseOptions::default())).await?;
    let reader = within("open", client.open_ledger(ledger.id(), &OpenOptions::new(digest, Some(PASSWORD)))).await?;
    let last = entry(COUNT as i64 - 1);
    ensure!(reader.closed() && reader.last_add_confirmed() == last, "it ends at {:?}", reader.last_add_confirmed());
    for options in [ReadOptions::default(), ReadOptions::default().parallel()] {
        let found = within("read", reader.read(EntryId::MIN, last, Some(&options))).await?;
        ensure!(found == lines(), "other entries than were written");
    }
    let beyond = refused("read beyond the end", reader.read(last, last + 1, None)).await?;
    ensure!(beyond == BkErrorKind::ReadExceedLastAddConfirmed, "beyond the end: {beyond:?}");
    Ok(())
}

async fn recovered(client: &BookKeeper, digest: DigestType) -> Result<()> {
    let ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    append(&ledger, COUNT).await?;
    let open = OpenOptions::new(digest, Some(PASSWORD)).recovery();
    let reader = within("recover", client.open_ledger(ledger.id(), &open)).await?;
    ensure!(reader.closed(), "it is not closed");
    let found = within("read", reader.read(EntryId::MIN, entry(COUNT as i64 - 1), None)).await?;
    ensure!(found == lines(), "other entries than were written");
    let late = refused("append to it", ledger.append(b"late")).await?;
    ensure!(late == BkErrorKind::LedgerFenced, "the writer is told {late:?}");
    Ok(())
}

async fn followed(client: &BookKeeper) -> Result<()> {
    let digest = DigestType::CRC32C;
    let mut ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    let reader = within("open", client.open_ledger(ledger.id(), &OpenOptions::new(digest, Some(PASSWORD)))).await?;
    for parallel in [false, true] {
        for number in 0..COUNT {
            let id = entry((u64::from(parallel) * COUNT + number) as i64);
            let poll = PollOptions::new(DEADLINE);
            let poll = if parallel { poll.parallel() } else { poll };
            // A reader learns that an entry is confirmed from the next one, or from the explicit last confirmed.
            let payload = line(number);
            let appended = within("append", ledger.append(&payload));
            let (appended, polled) = tokio::join!(appended, within("poll", reader.poll(id, &poll)));
            ensure!(appended? == id && polled? == line(number), "entry {id} is another one");
        }
    }
    within("close", ledger.close(CloseOptions::default())).await
}

async fn explicit_lac(client: &BookKeeper) -> Result<()> {
    let digest = DigestType::MAC;
    let ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    append(&ledger, 3).await?;
    let reader = within("open", client.open_ledger(ledger.id(), &OpenOptions::new(digest, Some(PASSWORD)))).await?;
    let given_up = tokio::time::Instant::now() + DEADLINE;
    // The crate writes it about a second after the last entry was confirmed.
    loop {
        let lac = within("read", reader.read_last_add_confirmed(&LacOptions::default().quorum())).await?;
        if lac == entry(2) {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < given_up, "the last confirmed is {lac:?} after {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn forced(client: &BookKeeper) -> Result<()> {
    let digest = DigestType::CRC32C;
    let ledger = within("create", client.create_ledger(options(digest, PASSWORD).deferred_sync())).await?;
    append(&ledger, COUNT).await?;
    ensure!(ledger.last_add_confirmed() == EntryId::INVALID, "confirmed before the force");
    within("force", ledger.force()).await?;
    ensure!(ledger.last_add_confirmed() == entry(COUNT as i64 - 1), "not confirmed by the force");
    Ok(())
}

async fn empty(client: &BookKeeper) -> Result<()> {
    let mut ledger = within("create", client.create_ledger(options(DigestType::CRC32C, b""))).await?;
    within("close", ledger.close(CloseOptions::default())).await?;
    let found = read(client, ledger.id().into(), false).await?;
    ensure!(found.is_empty(), "it has {} entries", found.len());
    Ok(())
}

async fn wrong_password(client: &BookKeeper) -> Result<()> {
    let digest = DigestType::MAC;
    let ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    append(&ledger, 2).await?;
    let open = OpenOptions::new(digest, Some(b"other")).recovery();
    let kind = refused("open with another password", client.open_ledger(ledger.id(), &open)).await?;
    ensure!(kind == BkErrorKind::UnauthorizedAccess, "it is told {kind:?}");
    let at = within("append", ledger.append(b"goes on")).await?;
    ensure!(at == entry(2), "the ledger was touched: {at:?}");
    Ok(())
}

async fn deleted(client: &BookKeeper) -> Result<()> {
    let digest = DigestType::CRC32C;
    let mut ledger = within("create", client.create_ledger(options(digest, PASSWORD))).await?;
    append(&ledger, 2).await?;
    within("close", ledger.close(CloseOptions::default())).await?;
    within("delete", client.delete_ledger(ledger.id(), DeleteOptions::default())).await?;
    let open = OpenOptions::new(digest, Some(PASSWORD));
    let kind = refused("open it", client.open_ledger(ledger.id(), &open)).await?;
    ensure!(kind == BkErrorKind::LedgerNotExisted, "it is told {kind:?}");
    Ok(())
}
