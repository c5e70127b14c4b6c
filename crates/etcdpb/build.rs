//! Generates the messages from `proto/` without protoc.

use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Not `env!`: a target directory that several work trees share keeps the compiled script of another one.
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let services = ["etcd/rpc.proto", "grpc/health.proto", "grpc/reflection.proto"];
    let files = protox::compile(services, [&root])?;
    let out = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), files.encode_to_vec())?;

    let mut config = prost_build::Config::new();
    config
        .bytes(["."])
        // The store keeps millions of KeyValue messages, so this message has its own
        // memory layout; see `record.rs`.
        .extern_path(".mvccpb.KeyValue", "crate::KeyValue")
        .compile_fds(files)?;
    Ok(())
}
