//! The program under test, built once.
//!
//! `cargo test` builds no binaries of other packages, so this runs `cargo build` into the target directory
//! that the tests themselves are in. Both variants are called `target/…/atoll`, so each is linked to a name
//! of its own, under a lock that tests of other processes respect.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use atoll_testing::run;
use rustix::fs::{FlockOperation, flock};

/// The program as it is shipped, in the profile of the tests.
pub fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build("atoll", &[]))
}

/// The program with fail points, see `ATOLL_FAILPOINTS`.
pub fn program_with_failpoints() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build("atoll-failpoints", &["--features", "failpoints"]))
}

fn build(name: &str, extra: &[&str]) -> PathBuf {
    // target/<profile>/deps/<test>
    let test = std::env::current_exe().expect("the test's own path");
    let profile_dir = test.ancestors().nth(2).expect("a target directory");
    let target_dir = profile_dir.parent().expect("a target directory");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let ours = profile_dir.join("blackbox");
    fs::create_dir_all(&ours).expect("make a directory");
    let lock = File::create(ours.join("lock")).expect("make a lock");
    flock(&lock, FlockOperation::LockExclusive).expect("take a lock");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Command::new(cargo)
        .current_dir(workspace)
        .args(["build", "--quiet", "-p", "atoll", "--bin", "atoll", "--profile", profile, "--target-dir"])
        .arg(target_dir)
        .args(extra));
    let (built, link, new) = (profile_dir.join("atoll"), ours.join(name), ours.join(format!("{name}.new")));
    drop(fs::remove_file(&new));
    fs::hard_link(&built, &new).expect("link the program");
    // Atomic: tests of other processes start it at any moment.
    fs::rename(&new, &link).expect("name the program");
    // Renaming a link over another of the same file does nothing and leaves both.
    drop(fs::remove_file(&new));
    link
}
