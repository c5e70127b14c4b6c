//! Generates the messages from `proto/`, without protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let files = protox::compile(["etcd/rpc.proto"], [&root])?;

    let mut config = prost_build::Config::new();
    config
        .bytes(["."])
        // The one message that the store keeps by the million has a layout of
        // its own; see `record.rs`.
        .extern_path(".mvccpb.KeyValue", "crate::KeyValue")
        .compile_fds(files)?;
    Ok(())
}
