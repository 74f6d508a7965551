//! Builds the guest agent with its own profile and static linking, in a target directory of its own
//! (cargo holds a lock on the outer one while this runs), and leaves it in `OUT_DIR`.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the agent, relative to the workspace. A change in any of them builds it anew.
const SOURCES: [&str; 9] = [
    "Cargo.lock",
    "Cargo.toml",
    "crates/guest/agent/Cargo.toml",
    "crates/guest/agent/run",
    "crates/guest/agent/src",
    "crates/guest/protocol/Cargo.toml",
    "crates/guest/protocol/src",
    "crates/guest/tree/Cargo.toml",
    "crates/guest/tree/src",
];

fn main() -> Result<(), Box<dyn Error>> {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../../..").canonicalize()?;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let triple = variable("TARGET")?
        .into_string()
        .map_err(|text| format!("TARGET is not text: {}", text.display()))?;
    let program = build(&workspace, &out.join("guest-target"), &triple)?;
    let bytes = std::fs::read(&program)?;
    std::fs::write(out.join("atoll-guest"), &bytes)?;
    build_run(&workspace, &out.join("atoll-run"), &triple)?;
    println!("cargo::rustc-env=ATOLL_GUEST_BLAKE3={}", blake3::hash(&bytes));
    Ok(())
}

fn variable(name: &str) -> Result<OsString, String> {
    env::var_os(name).ok_or_else(|| format!("cargo did not set {name}"))
}

fn build(workspace: &Path, target_dir: &Path, triple: &str) -> Result<PathBuf, Box<dyn Error>> {
    let profile = if variable("PROFILE")? == "release" { "guest" } else { "guest-dev" };
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["build", "--locked", "--package", "atoll-guest", "--profile", profile, "--target", triple])
        .arg("--target-dir")
        .arg(target_dir)
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .current_dir(workspace);
    for (name, _) in env::vars_os().filter(|(name, _)| belongs_to_outer_build(name)) {
        cargo.env_remove(name);
    }
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_"));
    cargo.env(flags, "-C target-feature=+crt-static -C relocation-model=static");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the guest agent failed: {status}").into());
    }
    Ok(target_dir.join(triple).join(profile).join("atoll-guest"))
}

/// Builds the command that asks for another profile: one file, without any library, so by the compiler alone.
fn build_run(workspace: &Path, program: &Path, triple: &str) -> Result<(), Box<dyn Error>> {
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.args(["--edition", "2024", "--crate-type", "bin", "--crate-name", "atoll_run", "--target", triple]);
    for option in [
        "panic=abort",
        "opt-level=z",
        "strip=symbols",
        "relocation-model=static",
        "target-feature=+crt-static",
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
        "link-arg=-static",
        "link-arg=-Wl,--build-id=none",
    ] {
        rustc.args(["-C", option]);
    }
    rustc.arg("-o").arg(program).arg(workspace.join("crates/guest/agent/run/main.rs"));
    let status = rustc.status()?;
    if !status.success() {
        return Err(format!("building atoll-run failed: {status}").into());
    }
    Ok(())
}

/// Whether a variable describes the outer compilation (its flags, its wrapper such as clippy, its
/// package) and must not leak into the agent's.
fn belongs_to_outer_build(name: &OsString) -> bool {
    let Some(name) = name.to_str() else { return false };
    let exact = [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTC",
        "RUSTDOC",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_MAKEFLAGS",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
        "NUM_JOBS",
        "LLVM_PROFILE_FILE",
    ];
    exact.contains(&name)
        || ["CARGO_PKG_", "CARGO_CFG_", "CARGO_FEATURE_", "CARGO_MANIFEST_", "CARGO_PROFILE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}
