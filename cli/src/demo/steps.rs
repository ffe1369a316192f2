//! The demo's steps, one after the other against a running node.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use common::clock::Clock;
use futures::StreamExt;
use proto::v1::{GetLedgerRequest, LedgerTier, OffloadLedgerRequest, StatusRequest, Tier};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::input::{Input, Lines};
use super::report::{ColdProof, Rate, Report};
use crate::Fault;
use crate::fault::chain;
use crate::output;
use crate::remote::{Remote, refused};
use crate::replay::{Range, Replay};
use crate::standalone::{COPIES, Node};

/// How many appends may be under way before the writer waits for the oldest: enough to fill the journal's groups.
const APPENDS_IN_FLIGHT: usize = 8192;
/// Lines travel from the reading thread in batches of about this size.
const BATCH_BYTES: usize = 128 * 1024;
const OFFLOADS_IN_FLIGHT: usize = 2;
/// How long the release of everything, and then the bookies' collection, may take before the demo gives up.
const STEP_DEADLINE: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// About what a bookie stores beside an entry's payload: header and digest, the journal's record header, its place in the index.
const ENTRY_OVERHEAD_BYTES: u64 = 36 + 25 + 24;

/// One ledger of the demo.
#[derive(Debug, Clone)]
struct Written {
    ledger: u64,
    entries: u64,
    bytes: u64,
}

impl Written {
    fn stored(&self) -> u64 {
        stored((self.entries, self.bytes))
    }
}

/// What entries weigh on a bookie: the measure by which a ledger's share of the bookies' space is taken.
fn stored((entries, bytes): (u64, u64)) -> u64 {
    bytes + entries * ENTRY_OVERHEAD_BYTES
}

/// The part of `whole` that goes to `part` of `all`.
fn share(whole: u64, part: u64, all: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(all.max(1))) as u64
}

/// What the write step left behind.
struct Writes {
    ledgers: Vec<Written>,
    sha: String,
    /// The digest of everything before the last ledger: what objects alone must give back.
    sha_settled: String,
}

impl Writes {
    fn sum(ledgers: &[Written]) -> (u64, u64) {
        ledgers.iter().fold((0, 0), |(entries, bytes), ledger| (entries + ledger.entries, bytes + ledger.bytes))
    }

    fn settled(&self) -> &[Written] {
        &self.ledgers[..self.ledgers.len() - 1]
    }

    fn hot(&self) -> &Written {
        self.ledgers.last().expect("the input is not empty, so there is a ledger")
    }
}

/// What a replay gave back.
struct Replayed {
    entries_hot: u64,
    entries_cold: u64,
    sha: String,
    in_order: bool,
}

pub(super) struct Demo {
    pub(super) input: Input,
    pub(super) roll_bytes: u64,
    pub(super) prove_cold: bool,
}

impl Demo {
    pub(super) async fn run(&self, node: &Node) -> Result<Report, Fault> {
        let clock = Clock::system();
        let mut rates = Vec::new();
        let mut timed = |step, started: Instant, (entries, bytes)| {
            rates.push(Rate { step, bytes, entries, took: clock.now() - started });
        };
        let remote = Remote::connect(&node.endpoint()).await?;
        let bookie_dirs = node.bookie_dirs();

        let started = clock.now();
        let writes = self.write(node).await?;
        let all = Writes::sum(&writes.ledgers);
        let settled = Writes::sum(writes.settled());
        timed("write", started, all);
        let bytes_bookies_before = allocated_bytes(&bookie_dirs)?;

        let started = clock.now();
        offload(&remote, writes.settled()).await?;
        timed("offload", started, settled);

        let started = clock.now();
        wait_released(&remote, writes.settled()).await?;
        let bytes_bookies_allowed = all.1 * COPIES / 10
            + share(bytes_bookies_before, writes.hot().stored(), stored(all))
            + COPIES * node.segment_bytes();
        let bytes_bookies_after = wait_shrunk(&bookie_dirs, bytes_bookies_before, bytes_bookies_allowed).await?;
        timed("release", started, settled);

        let started = clock.now();
        let replayed = replay(&remote, &writes.ledgers, "replaying").await?;
        timed("replay", started, all);

        let status =
            remote.tiering().status(StatusRequest {}).await.map_err(|status| refused("status", &status))?.into_inner();

        let prove_cold = if self.prove_cold {
            node.stop_bookies().await?;
            for dir in &bookie_dirs {
                std::fs::remove_dir_all(dir)
                    .map_err(|error| Fault::failed(format!("remove {}: {error}", dir.display())))?;
            }
            let started = clock.now();
            let proof = replay(&remote, writes.settled(), "replaying from objects alone").await?;
            timed("replay_cold", started, settled);
            Some(ColdProof {
                entries: proof.entries_cold,
                sha_equal: proof.sha == writes.sha_settled && proof.in_order && proof.entries_cold == settled.0,
            })
        } else {
            None
        };

        Ok(Report {
            files: self.input.files.len() as u64,
            bytes_in: all.1,
            bytes_bookies_before,
            bytes_bookies_after,
            bytes_bookies_allowed,
            bytes_objects: status.object_bytes,
            objects: status.objects,
            ledgers: writes.ledgers.len() as u64,
            first_ledger: writes.ledgers[0].ledger,
            entries: all.0,
            entries_hot: replayed.entries_hot,
            entries_cold: replayed.entries_cold,
            sha_in: writes.sha,
            sha_out: replayed.sha,
            in_order: replayed.in_order,
            peak_rss_bytes: peak_rss_bytes()?,
            rates,
            prove_cold,
        })
    }

    /// Writes every line through the replicating client, rolling ledgers at `roll_bytes`.
    async fn write(&self, node: &Node) -> Result<Writes, Fault> {
        let bar = output::progress_bytes("writing to 3 bookies", self.input.bytes());
        let (batches, mut lines) = mpsc::channel::<Vec<Bytes>>(8);
        let files: Vec<PathBuf> = self.input.files.iter().map(|(path, _)| path.clone()).collect();
        let reader =
            tokio::spawn(common::blocking::run_blocking("read the input", move || read_files(&files, &batches)));

        let mut sha = Sha256::new();
        let mut sha_settled = sha.clone();
        let mut ledgers: Vec<Written> = Vec::new();
        let mut writer: Option<client::LedgerWriter> = None;
        let mut pending = VecDeque::new();
        while let Some(batch) = lines.recv().await {
            let mut batch_bytes = 0;
            for line in batch {
                if ledgers.last().is_some_and(|ledger| ledger.bytes >= self.roll_bytes)
                    && let Some(full) = writer.take()
                {
                    finish(full, &mut pending).await?;
                }
                let current = match &writer {
                    Some(writer) => writer,
                    None => {
                        sha_settled = sha.clone();
                        let created = node.create_ledger().await?;
                        ledgers.push(Written { ledger: created.id().get(), entries: 0, bytes: 0 });
                        writer.insert(created)
                    }
                };
                sha.update(&line);
                batch_bytes += line.len() as u64;
                let ledger = ledgers.last_mut().expect("pushed with its writer");
                ledger.entries += 1;
                ledger.bytes += line.len() as u64;
                pending.push_back(current.append(line).await.map_err(|error| Fault::failed(chain(&error)))?);
                if pending.len() > APPENDS_IN_FLIGHT
                    && let Some(oldest) = pending.pop_front()
                {
                    oldest.await.map_err(|error| Fault::failed(chain(&error)))?;
                }
            }
            bar.inc(batch_bytes);
        }
        reader.await.map_err(|error| Fault::failed(format!("read the input: {error}")))??;
        if let Some(last) = writer.take() {
            finish(last, &mut pending).await?;
        }
        bar.finish_and_clear();
        if ledgers.is_empty() {
            return Err(Fault::usage("the input is empty"));
        }
        Ok(Writes { ledgers, sha: hex(&sha.finalize()), sha_settled: hex(&sha_settled.finalize()) })
    }
}

/// Waits for every append of a ledger, then closes it.
async fn finish(writer: client::LedgerWriter, pending: &mut VecDeque<client::Append>) -> Result<(), Fault> {
    for append in pending.drain(..) {
        append.await.map_err(|error| Fault::failed(chain(&error)))?;
    }
    writer.close().await.map_err(|error| Fault::failed(chain(&error)))?;
    Ok(())
}

/// Reads the files' lines into batches; ends early when nobody takes them any more.
fn read_files(files: &[PathBuf], batches: &mpsc::Sender<Vec<Bytes>>) -> Result<(), Fault> {
    let mut batch = Vec::new();
    let mut batch_bytes = 0;
    for path in files {
        let failed = |error: std::io::Error| Fault::failed(format!("read {}: {error}", path.display()));
        let mut lines = Lines::new(File::open(path).map_err(failed)?);
        while let Some(line) = lines.next_line().map_err(failed)? {
            batch_bytes += line.len();
            batch.push(Bytes::from(line));
            if batch_bytes >= BATCH_BYTES {
                batch_bytes = 0;
                if batches.blocking_send(std::mem::take(&mut batch)).is_err() {
                    return Ok(());
                }
            }
        }
    }
    let _ = batches.blocking_send(batch);
    Ok(())
}

/// Settles the ledgers, a few at a time; each answer comes after the object was read back and committed.
async fn offload(remote: &Remote, ledgers: &[Written]) -> Result<(), Fault> {
    let bar = output::progress_count("settling into objects", ledgers.len() as u64);
    let mut answers = futures::stream::iter(ledgers.iter().map(|ledger| {
        let mut tiering = remote.tiering();
        let request = OffloadLedgerRequest { ledger_id: ledger.ledger, release: false };
        async move {
            tiering
                .offload_ledger(request)
                .await
                .map_err(|status| refused(format_args!("settle ledger {}", ledger.ledger), &status))
        }
    }))
    .buffer_unordered(OFFLOADS_IN_FLIGHT);
    while let Some(answer) = answers.next().await {
        answer?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Waits until the offloader has released every ledger, which it does once the hot retention is over.
async fn wait_released(remote: &Remote, ledgers: &[Written]) -> Result<(), Fault> {
    let bar = output::progress_count("waiting for release", ledgers.len() as u64);
    let deadline = Instant::now() + STEP_DEADLINE;
    for written in ledgers {
        loop {
            let request = GetLedgerRequest { ledger_id: written.ledger };
            let answer = remote.ledgers().get_ledger(request).await;
            let ledger =
                answer.map_err(|status| refused(format_args!("ledger {}", written.ledger), &status))?.into_inner();
            if ledger.tier() == LedgerTier::Released {
                break;
            }
            if Instant::now() >= deadline {
                return Err(Fault::failed(format!(
                    "ledger {} was not released within {STEP_DEADLINE:?}",
                    written.ledger
                )));
            }
            sleep(POLL_INTERVAL).await;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Waits until the bookies' files take at most `allowed` bytes; past the deadline returns what they take, for the verdict.
async fn wait_shrunk(dirs: &[PathBuf], before: u64, allowed: u64) -> Result<u64, Fault> {
    let bar = output::progress_bytes("waiting for bookies' space", before.saturating_sub(allowed).max(1));
    let deadline = Instant::now() + STEP_DEADLINE;
    loop {
        let now = allocated_bytes(dirs)?;
        bar.set_position(before.saturating_sub(now));
        if now <= allowed || Instant::now() >= deadline {
            bar.finish_and_clear();
            return Ok(now);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Replays ledgers through the gateway, one call each.
async fn replay(remote: &Remote, ledgers: &[Written], step: &str) -> Result<Replayed, Fault> {
    let bar = output::progress_bytes(step, Writes::sum(ledgers).1);
    let mut sha = Sha256::new();
    let (mut entries_hot, mut entries_cold, mut in_order) = (0, 0, true);
    for written in ledgers {
        let failed = |status| refused(format_args!("replay ledger {}", written.ledger), &status);
        let range = Range { ledger: written.ledger, from: 0, to: None, tier: Tier::Unspecified };
        let mut stream = Replay::start(remote, range).await.map_err(failed)?;
        let mut expected = 0;
        while let Some(entries) = stream.next().await.map_err(failed)? {
            let mut bytes = 0;
            for entry in &entries {
                in_order &= entry.entry_id == expected;
                expected += 1;
                match entry.tier() {
                    Tier::Hot => entries_hot += 1,
                    Tier::Cold => entries_cold += 1,
                    Tier::Unspecified => in_order = false,
                }
                sha.update(&entry.payload);
                bytes += entry.payload.len() as u64;
            }
            bar.inc(bytes);
        }
        in_order &= expected == written.entries;
    }
    bar.finish_and_clear();
    Ok(Replayed { entries_hot, entries_cold, sha: hex(&sha.finalize()), in_order })
}

/// Allocated bytes (blocks, not sizes) of all files below the folders. Files that go away meanwhile count as gone.
fn allocated_bytes(dirs: &[PathBuf]) -> Result<u64, Fault> {
    fn walk(dir: &Path, sum: &mut u64) -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let facts = match entry.metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other?,
            };
            if facts.is_dir() {
                walk(&entry.path(), sum)?;
            } else {
                *sum += facts.blocks() * 512;
            }
        }
        Ok(())
    }
    let mut sum = 0;
    for dir in dirs {
        walk(dir, &mut sum).map_err(|error| Fault::failed(format!("measure {}: {error}", dir.display())))?;
    }
    Ok(sum)
}

/// The most memory this process has ever had resident.
fn peak_rss_bytes() -> Result<u64, Fault> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| Fault::failed(format!("read /proc/self/status: {error}")))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Fault::failed("/proc/self/status has no VmHWM line"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
