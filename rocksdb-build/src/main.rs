//! Nothing runs here: building this crate compiles RocksDB's static library, which `scripts/setup` then keeps.

fn main() {
    // A name from the library, so that the link step proves the archive is complete.
    let _ = rocksdb::Options::default();
}
