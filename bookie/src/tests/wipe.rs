use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use crate::{Bookie, BookieParts, Error, ErrorKind, LocalDisk, Wipe};
use common::net::{Connector as _, TcpConnector, TcpListener};
use common::shutdown::TaskTree;
use metadata::Cookies;
use proto::Status;
use tempfile::TempDir;

async fn start(world: &World, dir: &Path, tasks: &TaskTree) -> Result<Bookie, Error> {
    let parts = BookieParts {
        dir: dir.to_path_buf(),
        disk: Arc::new(LocalDisk::open(dir).await.unwrap()),
        listener: Box::new(TcpListener::bind("127.0.0.1:0").await.unwrap()),
        ..world.parts(tasks)
    };
    Bookie::start(small_config(), parts).await
}

/// A bookie that stored an entry and stopped.
async fn used() -> (World, TempDir, PathBuf) {
    let (world, home) = (World::new(), tempfile::tempdir().unwrap());
    let dir = home.path().join("bookie");
    let tasks = TaskTree::root("test");
    let bookie = start(&world, &dir, &tasks).await.unwrap();
    let running = Wipe::prepare(&dir).await.unwrap_err();
    assert!(running.to_string().contains("a bookie runs in it"), "{running}");
    let mut wire = Wire::new(TcpConnector.connect(&bookie.address()).await.unwrap());
    assert_eq!(wire.add(1, 0, b"x").await, Status::Ok);
    bookie.stop(Duration::from_secs(10)).await.unwrap();
    (world, home, dir)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn remove_cookie(world: &World) {
    let cookies = Cookies::new(world.metadata.clone());
    let stored = cookies.stored(&world.id).await.unwrap().unwrap();
    cookies.remove(&world.id, stored.version).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_directory_is_empty_and_takes_a_new_bookie_once_the_cookie_is_gone() {
    let (world, _home, dir) = used().await;
    let wipe = Wipe::prepare(&dir).await.unwrap();
    assert_eq!(wipe.cookie().bookie, world.id);
    assert!(wipe.files() > 3 && wipe.allocated_bytes() > 0 && !wipe.was_interrupted());
    wipe.remove().await.unwrap().finish().await.unwrap();
    assert_eq!(names(&dir), [] as [&str; 0]);
    let nothing = Wipe::prepare(&dir).await.unwrap_err();
    assert!(nothing.to_string().contains("holds no bookie's data"), "{nothing}");

    let refused = start(&world, &dir, &TaskTree::root("test")).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Identity, "the cluster still knows a bookie with data: {refused}");
    remove_cookie(&world).await;
    let bookie = start(&world, &dir, &TaskTree::root("test")).await.unwrap();
    assert_eq!(bookie.stats().entries, 0);
    bookie.stop(Duration::from_secs(10)).await.unwrap();
}

/// Whatever of it was removed before a crash, no bookie starts in the rest, with or without its cookie, and the next call ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wipe_cut_short_anywhere_is_gone_on_with() {
    for left in 0..6 {
        let (world, _home, dir) = used().await;
        let version = std::fs::read(dir.join("VERSION")).unwrap();
        if left == 5 {
            // All of it but the last step.
            drop(Wipe::prepare(&dir).await.unwrap().remove().await.unwrap());
            assert_eq!(names(&dir), ["FORMATTING"]);
        } else {
            std::fs::write(dir.join("FORMATTING"), &version).unwrap();
            let steps = ["VERSION", "journal/VERSION", "index/CURRENT", "journal"];
            for name in &steps[..left] {
                let path = dir.join(name);
                if path.is_dir() {
                    std::fs::remove_dir_all(path).unwrap();
                } else {
                    std::fs::remove_file(path).unwrap();
                }
            }
        }
        for remove in [false, true] {
            if remove {
                remove_cookie(&world).await;
            }
            let refused = start(&world, &dir, &TaskTree::root("test")).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Identity, "{left}: {refused}");
            assert!(refused.to_string().contains("bookie format"), "{left}: {refused}");
        }
        let wipe = Wipe::prepare(&dir).await.unwrap();
        assert!(wipe.was_interrupted() && wipe.cookie().bookie == world.id);
        wipe.remove().await.unwrap().finish().await.unwrap();
        assert_eq!(names(&dir), [] as [&str; 0], "{left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_are_refused_before_anything_is_removed() {
    for stranger in ["photo.jpg", "journal/notes", "journal/0000000000000001.seg.bak"] {
        let (world, _home, dir) = used().await;
        std::fs::write(dir.join(stranger), b"!").unwrap();
        let refused = Wipe::prepare(&dir).await.unwrap_err();
        assert!(refused.to_string().contains(stranger), "{refused}");
        std::fs::remove_file(dir.join(stranger)).unwrap();
        let bookie = start(&world, &dir, &TaskTree::root("test")).await.unwrap();
        bookie.stop(Duration::from_secs(10)).await.unwrap();
    }
    let (_world, home, dir) = used().await;
    std::fs::rename(dir.join("journal"), home.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(home.path().join("elsewhere"), dir.join("journal")).unwrap();
    let refused = Wipe::prepare(&dir).await.unwrap_err();
    assert!(refused.to_string().contains("journal"), "a link is not followed: {refused}");
    assert!(home.path().join("elsewhere/VERSION").exists());
}
