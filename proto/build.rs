//! Generates the Rust types of both protocols. `protox` compiles the `.proto` files, so no `protoc` has to be installed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=protos");
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);

    let mut bookkeeper = protox::Compiler::new(["protos"])?;
    bookkeeper.open_file("bookkeeper.proto")?;
    tonic_prost_build::configure().bytes(".").compile_fds(bookkeeper.file_descriptor_set())?;

    let mut thermocline = protox::Compiler::new(["protos"])?;
    // Comments stay in the descriptors: they are what a user of server reflection reads.
    thermocline.include_source_info(true).include_imports(true);
    thermocline.open_files(["thermocline/v1/ledgers.proto", "thermocline/v1/tiering.proto"])?;
    std::fs::write(out_dir.join("thermocline.v1.descriptors.bin"), thermocline.encode_file_descriptor_set())?;
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(thermocline.file_descriptor_set())?;
    Ok(())
}
