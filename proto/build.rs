//! Compiles `proto/` with protox, so that no `protoc` is needed on the machine.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(sources(Path::new("proto/tinygpt/v1"))?)?;
    let files = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptor.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().btree_map(".").bytes(".").compile_fds(files)?;
    Ok(())
}

/// The files in one folder, sorted so that every build gives the same bytes.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}
