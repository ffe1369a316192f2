//! An index that is lost, and made anew from the segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::config::ByteSize;
use common::shutdown::TaskTree;
use ledger::BookieId;
use proto::Status;
use proto::client::encode_write_lac_v3;

use super::support::*;
use crate::disk::BLOCK_BYTES;
use crate::*;

/// A bookie in a real directory, with RocksDB. Entries of ledgers 1 to 3; 2 is fenced, 3 has an explicit last-add-confirmed, 4 is gone
/// and 5 deleted.
struct Here {
    world: World,
    root: PathBuf,
    /// Of each ledger, but for one behind a gap.
    last: [u64; 4],
    _dir: tempfile::TempDir,
}

impl Here {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = BookieConfig { segment_bytes: ByteSize::kib(256), ..small_config() };
        let mut here =
            Self { world: World { config, ..World::new() }, root: dir.path().join("bookie"), last: [0; 4], _dir: dir };
        let (running, mut wire) = here.start().await;
        for l in [4, 5] {
            wire.fill(&running, l, 0, 2).await;
        }
        here.world.create_ledger(4, "other:3181", true).await;
        let report = running.bookie.collect_now().await.unwrap();
        assert_eq!((report.ledgers_deleted, report.ledgers_gone), (1, 1));
        for l in [1, 2, 3] {
            here.world.create_ledger(l, here.world.id.as_str(), false).await;
            let last = wire.fill(&running, l, 0, 1).await - 1;
            here.last[l as usize] = last;
            assert_eq!(wire.add(l, last + 100, b"behind a gap").await, Status::Ok);
        }
        assert_eq!(wire.fence(2, &key()).await.unwrap(), body(2, here.last[2] + 100, b"behind a gap"));
        let mut other = running.connect().await;
        let lac = lac_body(3, 7_000);
        let reply = other.ask(|out| encode_write_lac_v3(1, ledger(3), Some(entry(7_000)), &key(), &lac, out)).await;
        assert_eq!(reply.status, Status::Ok);
        running.stop().await;
        here
    }

    async fn try_start(&self) -> Result<Running, Error> {
        let tasks = TaskTree::root("test");
        let disk = LocalDisk::open(&self.root).await.unwrap();
        let parts = BookieParts { dir: self.root.clone(), disk: Arc::new(disk), ..self.world.parts(&tasks) };
        let bookie = Bookie::start(self.world.config.clone(), parts).await?;
        Ok(Running::of(bookie, tasks, &self.world))
    }

    async fn start(&self) -> (Running, Wire) {
        let running = self.try_start().await.unwrap();
        let wire = running.connect().await;
        (running, wire)
    }

    fn segments(&self) -> Vec<PathBuf> {
        let names = std::fs::read_dir(self.root.join("journal")).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<PathBuf> =
            names.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
        segments.sort();
        segments
    }

    fn marked(&self) -> bool {
        self.root.join("UNPROVEN").exists()
    }

    async fn check(&self, wire: &mut Wire) {
        for l in [1, 2, 3] {
            assert_eq!(wire.read(l, 0).await.unwrap(), body(l, 0, &payload(l, 0)), "ledger {l}");
            let last = self.last[l as usize];
            assert_eq!(wire.read(l, last).await.unwrap(), body(l, last, &payload(l, last)));
            assert_eq!(wire.read(l, last + 100).await.unwrap(), body(l, last + 100, b"behind a gap"));
        }
    }

    async fn check_facts(&self, wire: &mut Wire) {
        self.check(wire).await;
        assert_eq!(wire.add(2, 9_000, b"late").await, Status::Fenced);
        assert_eq!(
            wire.add_as(1, 9_000, b"x", &ledger::MasterKey::derive(b"other"), Default::default()).await,
            Status::Unauthorized
        );
    }
}

/// The newest segment that was opened for writing: the only one with a group and without an index of its own.
fn newest(segments: &[PathBuf]) -> PathBuf {
    let is_open = |path: &&PathBuf| std::fs::read(path).unwrap()[BLOCK_BYTES..BLOCK_BYTES + 4] == *b"TCGR";
    segments.iter().rev().find(is_open).unwrap().clone()
}

fn remove(dir: &Path) {
    std::fs::remove_dir_all(dir).unwrap();
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut content = std::fs::read(path).unwrap();
    change(&mut content);
    std::fs::write(path, content).unwrap();
}

#[tokio::test]
async fn a_whole_index_comes_back_with_what_was_dropped() {
    let here = Here::new().await;
    let rebuilt = rebuild_index(&here.root, |done, total| assert!(done <= total)).await.unwrap();
    assert_eq!((rebuilt.tombstones, rebuilt.marked, rebuilt.damaged_groups), (Some(2), false, 0));
    assert!(rebuilt.sealed + rebuilt.reread <= here.segments().len() as u64, "spare ones are none");
    assert!(rebuilt.sealed >= 3 && rebuilt.ledgers >= 3 && rebuilt.bookie == here.world.id.as_str(), "{rebuilt:?}");
    assert!(!here.marked());
    let (running, mut wire) = here.start().await;
    assert_eq!(running.bookie.stats().state, BookieState::Writable);
    here.check_facts(&mut wire).await;
    assert_eq!(wire.read(1, here.last[1] + 50).await, Err(Status::NoEntry));
    let (explicit, _) = running.connect().await.read_lac(3).await.unwrap();
    assert_eq!(explicit.unwrap(), lac_body(3, 7_000));
    assert_eq!(wire.add(5, 9_000, b"x").await, Status::Fenced, "it is deleted");
    assert_eq!(wire.add(1, 9_000, b"x").await, Status::Ok);
    running.stop().await;
    let again = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert_eq!((again.tombstones, again.marked), (Some(2), false));
}

#[tokio::test]
async fn a_lost_index_is_made_anew_and_the_bookie_looks_for_what_it_lost() {
    let here = Here::new().await;
    remove(&here.root.join("index"));
    let Err(error) = here.try_start().await else { panic!("it starts without its index") };
    let error = error.to_string();
    assert!(error.contains("bookie rebuild-index --dir"), "{error}");
    // A rebuild that was cut short is begun anew.
    std::fs::create_dir(here.root.join("index.new")).unwrap();
    std::fs::write(here.root.join("index.new").join("rest"), b"x").unwrap();
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert_eq!((rebuilt.tombstones, rebuilt.marked, rebuilt.damaged_groups), (None, true, 0));
    assert!(here.marked() && !here.root.join("index.new").exists());
    let (running, mut wire) = here.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    here.check_facts(&mut wire).await;
    assert_eq!(running.bookie.stats().limbo, 3, "they are open");
    assert_eq!(wire.add(4, 9_000, b"x").await, Status::Fenced, "it is closed and lives elsewhere");
    assert_eq!(wire.read(4, 9_000).await, Err(Status::Io), "unknown, in the words of version 2");
    running.stop().await;
}

#[tokio::test]
async fn damage_costs_what_is_damaged_and_is_looked_for() {
    let here = Here::new().await;
    let (running, wire) = here.start().await;
    drop(wire);
    running.stop().await;
    let segments = here.segments();
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    let sealed = rebuilt.sealed;
    // One index within a segment, one group of another, one header.
    let victims = [segments[0].clone(), segments[1].clone(), segments[2].clone()];
    change(&victims[0], |file| {
        let trailer = file.len() - BLOCK_BYTES;
        file[trailer + 20] ^= 1;
    });
    change(&victims[1], |file| file[3 * BLOCK_BYTES + 100] ^= 1);
    change(&victims[2], |file| file[..64].fill(0));
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert!(rebuilt.sealed < sealed && rebuilt.reread > 0, "{rebuilt:?}");
    assert_eq!((rebuilt.damaged_groups, rebuilt.unreadable.len(), rebuilt.marked), (2, 1, true));
    let (running, mut wire) = here.start().await;
    settle(|| running.bookie.stats().state == BookieState::Writable).await;
    let mut found = 0;
    for l in [1, 2, 3] {
        for e in 0..=here.last[l as usize] {
            match wire.read(l, e).await {
                Ok(read) => {
                    assert_eq!(read, body(l, e, &payload(l, e)));
                    found += 1;
                }
                // Damaged, or unknown: version 2 has one word for both.
                Err(status) => assert_eq!(status, Status::Io, "entry {e} of ledger {l} is told as absent"),
            }
        }
    }
    assert!(found > here.last[1], "{found}");
    running.stop().await;
}

#[tokio::test]
async fn a_lost_segment_is_known_by_the_old_index() {
    let here = Here::new().await;
    // The second is a sealed one; the newest is the open one, or a spare one that nobody misses, with the open one before it.
    for victim in [|all: &[PathBuf]| all[1].clone(), |all: &[PathBuf]| newest(all)] {
        let victim = victim(&here.segments());
        std::fs::remove_file(&victim).unwrap();
        let Err(error) = here.try_start().await else { panic!("it starts without a segment") };
        assert!(error.to_string().contains("the segment file is missing"), "{error}");
        let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
        let name = victim.file_name().unwrap().to_str().unwrap();
        assert_eq!((rebuilt.lost.as_slice(), rebuilt.marked), (&[name.to_owned()][..], true));
        let (running, _) = here.start().await;
        settle(|| running.bookie.stats().state == BookieState::Writable).await;
        assert_eq!(running.bookie.stats().limbo, 3);
        assert_eq!(running.connect().await.add(77, 0, b"new").await, Status::Ok);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_sealed_segment_that_lost_its_tail_is_known_as_damaged() {
    let here = Here::new().await;
    let victim = here.segments()[1].clone();
    change(&victim, |file| file.truncate(file.len() / 2));
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert!(rebuilt.damaged_groups > 0 && rebuilt.marked, "{rebuilt:?}");
    assert_eq!(rebuilt.tombstones, Some(2));
}

#[tokio::test]
async fn a_rebuild_cut_short_between_the_two_indexes_loses_nothing() {
    for blank in [false, true] {
        let here = Here::new().await;
        std::fs::rename(here.root.join("index"), here.root.join("index.old")).unwrap();
        if blank {
            // What a start leaves that found none.
            assert!(here.try_start().await.is_err());
        }
        let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
        assert_eq!((rebuilt.tombstones, rebuilt.marked), (Some(2), false));
        assert!(!here.root.join("index.old").exists());
        let (running, mut wire) = here.start().await;
        here.check_facts(&mut wire).await;
        running.stop().await;
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn an_index_that_was_put_aside_goes_with_the_next_start() {
    let here = Here::new().await;
    copy_dir(&here.root.join("index"), &here.root.join("index.old"));
    let (running, mut wire) = here.start().await;
    assert!(!here.root.join("index.old").exists());
    assert_eq!(wire.add(1, 9_000, b"newer than what was aside").await, Status::Ok);
    running.stop().await;
    remove(&here.root.join("index"));
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert_eq!(rebuilt.tombstones, None, "nothing old is taken for the index");
    let (running, mut wire) = here.start().await;
    assert_eq!(wire.read(1, 9_000).await.unwrap(), body(1, 9_000, b"newer than what was aside"));
    running.stop().await;
}

#[tokio::test]
async fn segments_that_are_newer_than_the_index_are_no_spare_ones() {
    let mut here = Here::new().await;
    let old = here.root.parent().unwrap().join("backup");
    copy_dir(&here.root.join("index"), &old);
    let (running, mut wire) = here.start().await;
    here.last[1] = wire.fill(&running, 1, here.last[1] + 101, 3).await - 1;
    assert_eq!(wire.add(1, here.last[1] + 100, b"behind a gap").await, Status::Ok);
    running.stop().await;
    remove(&here.root.join("index"));
    copy_dir(&old, &here.root.join("index"));
    // A start takes none of them for a spare one.
    let before = here.segments();
    let Err(error) = here.try_start().await else { panic!("it starts with an old index") };
    assert!(error.to_string().contains("older than this segment"), "{error}");
    assert_eq!(here.segments(), before);
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert!(rebuilt.marked && here.marked(), "what it says of dropped ledgers may be too old");
    let (running, mut wire) = here.start().await;
    here.check(&mut wire).await;
    assert_eq!(wire.read(1, here.last[1] - 1).await.unwrap(), body(1, here.last[1] - 1, &payload(1, here.last[1] - 1)));
    running.stop().await;
}

#[tokio::test]
async fn a_newer_segment_that_cannot_be_read_is_no_spare_one_either() {
    let here = Here::new().await;
    let old = here.root.parent().unwrap().join("backup");
    copy_dir(&here.root.join("index"), &old);
    let (running, mut wire) = here.start().await;
    wire.fill(&running, 1, here.last[1] + 101, 1).await;
    running.stop().await;
    remove(&here.root.join("index"));
    copy_dir(&old, &here.root.join("index"));
    let victim = newest(&here.segments());
    change(&victim, |file| file[..64].fill(7));
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    let name = victim.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(rebuilt.unreadable.contains(&name) && rebuilt.marked && here.marked(), "{rebuilt:?}");
    let (running, _) = here.start().await;
    assert!(here.segments().contains(&victim));
    running.stop().await;
}

#[tokio::test]
async fn a_rebuild_cut_short_does_not_make_a_damaged_segment_look_whole() {
    let here = Here::new().await;
    let victim = here.segments()[1].clone();
    change(&victim, |file| file.truncate(file.len() / 2));
    let (root, calls) = (here.root.clone(), std::sync::atomic::AtomicU64::new(0));
    let cut = tokio::spawn(async move {
        let third = |_, _| assert!(calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2, "cut short");
        rebuild_index(&root, third).await
    });
    assert!(cut.await.unwrap_err().is_panic(), "behind the victim");
    assert!(here.marked());
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert!(rebuilt.marked && here.marked(), "{rebuilt:?}");
}

#[tokio::test]
async fn the_index_of_another_bookie_is_not_taken_over() {
    let (here, other) = (Here::new().await, tempfile::tempdir().unwrap());
    let mut world = World { config: here.world.config.clone(), ..World::new() };
    world.id = BookieId::new("other:3181").unwrap();
    let stranger = Here { world, root: other.path().join("bookie"), last: [0; 4], _dir: other };
    let (running, _) = stranger.start().await;
    running.stop().await;
    remove(&here.root.join("index"));
    std::fs::rename(stranger.root.join("index"), here.root.join("index")).unwrap();
    // Alone, and beside one that was put aside.
    for aside in [false, true] {
        if aside {
            std::fs::create_dir(here.root.join("index.old")).unwrap();
        }
        let error = rebuild_index(&here.root, |_, _| {}).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Identity && error.to_string().contains("another bookie"), "{error}");
        assert!(here.root.join("index").join("CURRENT").exists());
    }
}

#[tokio::test]
async fn what_is_left_of_a_blank_index_keeps_nobody_from_the_one_aside() {
    let here = Here::new().await;
    std::fs::rename(here.root.join("index"), here.root.join("index.old")).unwrap();
    std::fs::create_dir(here.root.join("index")).unwrap();
    std::fs::write(here.root.join("index").join("CURRENT"), b"MANIFEST-000001\n").unwrap();
    let rebuilt = rebuild_index(&here.root, |_, _| {}).await.unwrap();
    assert_eq!((rebuilt.tombstones, rebuilt.marked), (Some(2), false));
    let (running, mut wire) = here.start().await;
    here.check_facts(&mut wire).await;
    running.stop().await;
}

#[tokio::test]
async fn only_a_bookie_that_is_stopped_is_rebuilt() {
    let here = Here::new().await;
    let (running, _) = here.start().await;
    let error = rebuild_index(&here.root, |_, _| {}).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Identity && error.to_string().contains("stop that process"), "{error}");
    running.stop().await;
    for (dir, what) in
        [(here.root.join("journal"), "holds no bookie's data"), (here.root.join("nothing"), "holds no bookie's data")]
    {
        let error = rebuild_index(&dir, |_, _| {}).await.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert!(!dir.join("index.new").exists() && !dir.join("journal").exists());
    }
    assert_eq!(
        known_id(&LocalDisk::open(&here.root).await.unwrap(), &here.root).await.unwrap(),
        Some(BookieId::new("bk1:3181").unwrap())
    );
}

#[tokio::test]
async fn a_look_at_a_stopped_bookie_finds_what_is_there_and_what_is_damaged() {
    let here = Here::new().await;
    let segments = here.segments();
    let files = || segments.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
    let before = files();
    let inspection = Inspection::open(&here.root).await.unwrap();
    assert_eq!((inspection.bookie.as_str(), inspection.segments.len()), (here.world.id.as_str(), segments.len()));
    let (mut ledgers, mut sealed) = (std::collections::BTreeMap::new(), 0);
    for segment in &inspection.segments {
        let check = inspection.check(*segment).await.unwrap();
        assert!(check.is_whole() && check.groups > 0, "{check:?}");
        sealed += u64::from(check.sealed);
        inspection.add_ledgers(*segment, &mut ledgers).await.unwrap();
    }
    assert!(sealed > 0 && sealed < segments.len() as u64, "the last one is open");
    for l in [1, 2, 3] {
        let (seen, last) = (&ledgers[&ledger(l)], here.last[l as usize]);
        assert_eq!((seen.first, seen.last, seen.fenced), (Some(entry(0)), Some(entry(last + 100)), l == 2));
        assert!(seen.entries > last, "{seen:?}");
    }
    let mut records = Vec::new();
    for (segment, _) in &inspection.segments {
        assert_eq!(inspection.records(*segment, |record| records.push(record)).await.unwrap(), 0);
    }
    let fences: Vec<_> = records.iter().filter(|record| record.kind == crate::format::RecordKind::Fence).collect();
    assert_eq!((fences.len(), fences[0].ledger, fences[0].entry), (1, ledger(2), None));
    let entries = records.iter().filter(|record| record.entry.is_some()).count() as u64;
    assert_eq!(entries, ledgers.values().map(|seen| seen.entries).sum::<u64>());
    assert!(files() == before, "nothing is changed");
    let Err(error) = Inspection::open(&here.root).await else { panic!("it is locked") };
    assert_eq!(error.kind(), ErrorKind::Identity);
    drop(inspection);

    change(&segments[0], |file| file[3 * BLOCK_BYTES + 100] ^= 1);
    let inspection = Inspection::open(&here.root).await.unwrap();
    let check = inspection.check(inspection.segments[0]).await.unwrap();
    assert!(check.sealed && check.damaged_groups == 1 && check.wrong_rows == 0, "{check:?}");
    drop(inspection);
    change(&segments[1], |file| file[..64].fill(0));
    let inspection = Inspection::open(&here.root).await.unwrap();
    assert_eq!(inspection.check(inspection.segments[1]).await.unwrap_err().kind(), ErrorKind::Damaged);
}
