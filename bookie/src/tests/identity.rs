use std::path::Path;
use std::sync::Arc;

use super::support::*;
use crate::disk::Disk as _;
use crate::index::MemoryIndex;
use crate::{ErrorKind, MemoryDisk};
use ledger::BookieId;
use metadata::{Cookies, MemoryStore, MetadataStore};
use proto::Status;

async fn refused(world: &World, words: &str) {
    let error = world.try_start().await.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Identity, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

async fn used() -> World {
    let world = World::new();
    let running = world.start().await;
    assert_eq!(running.connect().await.add(1, 0, b"x").await, Status::Ok);
    running.stop().await;
    world
}

#[tokio::test]
async fn a_new_bookie_stores_its_cookie_before_it_registers() {
    let world = World::new();
    let running = world.start().await;
    let (cookie, _) = Cookies::new(world.metadata.clone()).get(&world.id).await.unwrap().unwrap();
    let file = world.disk.read_file(&Path::new(DIR).join("VERSION"), 10_000).await.unwrap().unwrap();
    assert_eq!(file, cookie.encode().as_bytes());
    assert_eq!(world.registered().await, Some(true));
    assert_eq!(running.bookie.address(), "bk1:3181");
    running.stop().await;
    assert_eq!(world.registered().await, None);
    world.start().await.stop().await;
}

#[tokio::test]
async fn blank_directories_are_refused() {
    let mut world = used().await;
    world.disk = MemoryDisk::new();
    world.index = MemoryIndex::new();
    refused(&world, "has no cookie").await;
    assert_eq!(world.registered().await, None);
}

#[tokio::test]
async fn each_emptied_part_is_refused() {
    let world = used().await;
    let root = Path::new(DIR);
    for part in ["VERSION", "journal/VERSION"] {
        let broken = World {
            disk: world.disk.crash(),
            index: world.index.crash(),
            metadata: world.metadata.clone(),
            ..World::new()
        };
        broken.disk.remove(&root.join(part)).await.unwrap();
        refused(&broken, "has no cookie").await;
    }
    let broken = World { disk: world.disk.crash(), metadata: world.metadata.clone(), ..World::new() };
    refused(&broken, "the index").await;
}

#[tokio::test]
async fn a_directory_of_another_bookie_or_cluster_is_refused() {
    let mut world = used().await;
    world.id = BookieId::new("bk2:3181").unwrap();
    refused(&world, "is of bookie bk1:3181").await;

    let mut world = used().await;
    world.metadata = Arc::new(MemoryStore::new());
    refused(&world, "holds no cluster").await;
    let other: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
    metadata::Cluster::init_or_open(&*other, &common::rng::Rng::seeded(9)).await.unwrap();
    world.metadata = other;
    refused(&world, "is of cluster").await;
}

#[tokio::test]
async fn a_directory_with_foreign_files_is_refused() {
    let world = World::new();
    world.disk.create_dir(Path::new(DIR)).await.unwrap();
    world.disk.write_file(&Path::new(DIR).join("photo.jpg"), b"!").await.unwrap();
    refused(&world, "photo.jpg").await;
}

#[tokio::test]
async fn a_set_up_cut_short_is_completed() {
    let world = World::new();
    let running = world.start().await;
    let intent = world.disk.read_file(&Path::new(DIR).join("VERSION"), 10_000).await.unwrap().unwrap();
    running.stop().await;
    // The cookie is in metadata; of the files only the intent was written.
    let half =
        World { disk: MemoryDisk::new(), index: world.index.crash(), metadata: world.metadata.clone(), ..World::new() };
    half.disk.create_dir(Path::new(DIR)).await.unwrap();
    half.disk.write_file(&Path::new(DIR).join("VERSION.new"), &intent).await.unwrap();
    let none_opened = crate::index::rows::put_opened(crate::format::SegmentId::NONE);
    crate::index::Index::write(&half.index, vec![none_opened]).await.unwrap();
    let running = half.start().await;
    assert_eq!(running.connect().await.add(1, 0, b"x").await, Status::Ok);
    running.stop().await;
    half.start().await.stop().await;
}

#[tokio::test]
async fn the_form_of_cold_ids_is_refused() {
    let mut world = World::new();
    world.id = BookieId::new("c03-0.cold.thermocline:3181").unwrap();
    if ledger::is_cold(&world.id) {
        refused(&world, "reserved").await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_never_carry_one_id() {
    let world = World::new();
    let running = world.start().await;
    let second = World {
        disk: world.disk.crash(),
        index: world.index.crash(),
        metadata: world.metadata.clone(),
        ..World::new()
    };
    let error = second.try_start().await.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Identity, "{error}");
    running.stop().await;
}
