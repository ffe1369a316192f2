//! What every [`Disk`] must do; each implementation runs it.

use std::path::Path;

use super::{AlignedBuffer, BLOCK_BYTES, Disk, read_one};

/// Runs the suite in `dir`, which must not exist.
///
/// # Panics
/// When the disk breaks a rule.
pub async fn run(disk: &dyn Disk, dir: &Path) {
    let (block, name) = (BLOCK_BYTES as u64, dir.join("one"));
    assert!(disk.list(dir).await.is_err(), "a missing directory is an error");
    disk.create_dir(dir).await.expect("create a directory");
    disk.create_dir(dir).await.expect("create it again");
    assert!(disk.list(dir).await.expect("list").is_empty());

    let small = dir.join("small");
    assert_eq!(disk.read_file(&small, 10).await.expect("read a missing file"), None);
    disk.write_file(&small, b"first").await.expect("write a small file");
    disk.write_file(&small, b"second").await.expect("replace a small file");
    assert_eq!(disk.read_file(&small, 10).await.expect("read it").as_deref(), Some(&b"second"[..]));
    assert!(disk.read_file(&small, 5).await.is_err(), "longer than allowed");

    let file = disk.create(&name, 4 * block).await.expect("create");
    disk.sync_dir(dir).await.expect("sync the directory");
    assert!(disk.create(&name, block).await.is_err(), "exists already");
    assert_eq!(file.facts().await.expect("facts").bytes, 4 * block);
    let (_, result) = file.write(block, AlignedBuffer::copy_of(&[7; 5000]), true).await;
    result.expect("write");
    assert_eq!(read_one(&*file, 0..3).await.expect("read a reserved range")[..], [0; 3]);
    let answers = file.read(vec![block..block + 5000, 4 * block - 1..4 * block + 1, block + 4999..block + 5002]).await;
    assert_eq!(answers[0].as_ref().expect("read")[..], [7; 5000]);
    assert!(answers[1].is_err(), "beyond the end");
    assert_eq!(answers[2].as_ref().expect("read")[..], [7, 0, 0]);

    file.set_len(3 * block).await.expect("cut");
    let again = disk.open(&name).await.expect("open");
    assert_eq!(again.facts().await.expect("facts").bytes, 3 * block);
    assert_eq!(read_one(&*again, block..block + 1).await.expect("read")[..], [7]);
    let (_, result) = again.write(2 * block, AlignedBuffer::copy_of(&[9]), false).await;
    result.expect("write through an opened file");
    again.sync().await.expect("sync");
    assert_eq!(read_one(&*file, 2 * block..2 * block + 1).await.expect("read")[..], [9]);

    assert_eq!(disk.list(dir).await.expect("list"), ["one", "small"]);
    disk.remove(&name).await.expect("remove");
    disk.sync_dir(dir).await.expect("sync the directory");
    assert!(disk.open(&name).await.is_err());
    assert!(disk.remove(&name).await.is_err(), "it is gone");
    assert_eq!(read_one(&*again, block..block + 1).await.expect("an open file outlives its name")[..], [7]);
    let free = disk.free_bytes(dir).await.expect("free bytes");
    assert!(free > 0 && disk.total_bytes(dir).await.expect("total bytes") >= free);
}
