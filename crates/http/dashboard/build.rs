//! Makes the table of the files in `dist`. They are made by `npm run build` in `dashboard/` and committed, so that
//! building the program needs no node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("dist");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut paths = Vec::new();
    collect(&root, &root, &mut paths)?;
    paths.sort();
    let mut table = String::from("&[\n");
    for path in &paths {
        let file = |ending: &str| root.join(format!("{path}.{ending}"));
        let (gzip, brotli) = (file("gz"), file("br"));
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "File {{ path: {path:?}, gzip: include_bytes!({gzip:?}), brotli: include_bytes!({brotli:?}) }},"
        );
    }
    table.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("files.rs"), table)
}

/// Names of the files below `dir` that are there compressed, without that ending.
fn collect(root: &Path, dir: &Path, into: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, into)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(|path| path.to_str()) {
            into.extend(name.strip_suffix(".gz").map(str::to_owned));
        }
    }
    Ok(())
}
