//! Puts the migrations into the program, in the order of their names. The library's own macro would do that, too, but builds the
//! library with both databases a second time for it.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=migrations");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut paths = fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let mut list = String::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default();
        writeln!(list, "({name:?}, include_str!({path:?})),").map_err(io::Error::other)?;
    }
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?;
    fs::write(Path::new(&out).join("migrations.rs"), format!("&[{list}]"))
}
