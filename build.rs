//! proto/ → generated code and the descriptor set that feeds reflection; nothing else. Needs no protoc.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["sidewatch/v1/sidewatch.proto"], ["proto"])?;
    std::fs::write(out.join("sidewatch.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
