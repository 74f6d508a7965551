//! Running tests at another isolation level than they were written at: with `ATOLL_TEST_LEVEL=microvm`, every server
//! gives a virtual machine to each request that names no level, from an image with the programs that tests use.
//!
//! On demand, because machines are slow where they are emulated, and tests that look at what a container is on the
//! host are not for them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use atoll_testing::machines::{cache, debian_with_tools, exclusive, kernel_package};

use crate::{command, program};

/// The variable.
const LEVEL: &str = "ATOLL_TEST_LEVEL";
/// The name of the image.
const IMAGE: &str = "tools";

/// A level that was asked for, ready to be used.
#[derive(Debug)]
pub(crate) struct Level {
    args: [String; 4],
    machines: PathBuf,
    image: PathBuf,
}

/// The level that the environment asks for, if any.
pub(crate) fn asked() -> Option<&'static Level> {
    static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
    LEVEL.get_or_init(prepare).as_ref()
}

#[expect(clippy::disallowed_methods, reason = "who runs the tests says so")]
fn prepare() -> Option<Level> {
    let level = std::env::var(LEVEL).ok()?;
    assert_eq!(level, "microvm", "{LEVEL} is microvm, or nothing");
    let image = archive("debian-tools.tar", &debian_with_tools());
    let args = ["--default-isolation", &level, "--default-image", IMAGE];
    Some(Level { args: args.map(str::to_owned), machines: machines(), image })
}

/// The directory that `atoll setup microvm` made: kept for each kernel, and shared by all tests.
///
/// # Panics
/// When there can be no virtual machines here: a test of them fails then.
#[must_use]
pub fn machines() -> PathBuf {
    let package = kernel_package();
    let dir = cache().join("tested-machines").join(package.file_stem().expect("the name of a package"));
    // Tests are processes of their own; the first one sets up while the other tests wait.
    let _turn = exclusive("tested-machines");
    if !dir.join("kernel").try_exists().expect("look for a kernel") {
        std::fs::create_dir_all(&dir).expect("make a directory");
        set_up_machines(&dir);
    }
    dir
}

/// Runs `atoll setup microvm` for a directory, with the kernel that all tests use.
///
/// # Panics
/// When it fails, or tells no way in which machines run.
pub fn set_up_machines(dir: &Path) {
    let set_up = command(program())
        .args(["setup", "microvm", "--json", "--package"])
        .arg(kernel_package())
        .arg("--microvm-dir")
        .arg(dir)
        .output()
        .expect("start the program");
    assert!(set_up.status.success(), "{}", String::from_utf8_lossy(&set_up.stderr));
    let told: serde_json::Value = serde_json::from_slice(&set_up.stdout).expect("JSON");
    assert!(matches!(told["accelerator"].as_str(), Some("kvm" | "emulated")), "{told}");
}

/// The archive of a root file system, kept under a name.
#[must_use]
pub fn archive(name: &str, root: &Path) -> PathBuf {
    let archive = cache().join(name);
    let _turn = exclusive(name);
    if !archive.try_exists().expect("look for a file") {
        let new = cache().join(format!("{name}.new"));
        atoll_testing::run(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&new).arg("."));
        std::fs::rename(&new, &archive).expect("put an archive in its place");
    }
    archive
}

/// Whether the sandboxes of servers that were told nothing else are machines.
#[must_use]
pub fn has_own_kernel() -> bool {
    asked().is_some()
}

impl Level {
    /// Arguments of a server that gives it.
    pub(crate) fn args(&self) -> &[String] {
        &self.args
    }

    /// Puts the files that machines need into a data directory, where `atoll doctor` finds them, too.
    pub(crate) fn set_up(&self, data: &Path) {
        std::fs::create_dir_all(data).expect("make a data directory");
        let machines = data.join("microvm");
        if !machines.try_exists().expect("look at a data directory") {
            std::os::unix::fs::symlink(&self.machines, machines).expect("make a link");
        }
    }

    /// Puts the image into a new server.
    pub(crate) fn import(&self, url: &str, key: &str) {
        let import = |image: &Path| {
            let mut command = command(program());
            command.env("ATOLL_URL", url).env("ATOLL_API_KEY", key);
            command.args(["image", "import"]).arg(image).arg(IMAGE).output().expect("start the program")
        };
        let output = import(&self.image);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
