//! Programs and files of the host that tests of virtual machines need.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where `scripts/install-deps` puts a kernel, and where the tests keep the files that they make of it.
const CACHE: &str = "/var/cache/atoll-tests";
/// QEMU, as Debian installs it.
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// The oldest version that works.
const QEMU_MIN: (u32, u32) = (9, 1);

/// Where things are kept from one run to the next.
#[must_use]
pub fn cache() -> PathBuf {
    CACHE.into()
}

/// Programs that tests of the drivers use, on top of Debian's smallest set.
const PACKAGES: &str = "perl-base,bsdutils,util-linux,procps,hostname";
/// And those that the other tests use.
const TOOLS: &str =
    "python3,curl,openssl,ca-certificates,iproute2,iputils-ping,bind9-dnsutils,git,socat,netcat-openbsd";

/// A Debian root file system with the user `user` of id 1000. Made once, kept for the next run.
#[must_use]
pub fn debian() -> PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| bootstrap("debian-minimal", PACKAGES)).clone()
}

/// The same with everything that tests run on the host's own files.
#[must_use]
pub fn debian_with_tools() -> PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| bootstrap("debian-tools", &format!("{PACKAGES},{TOOLS}"))).clone()
}

fn bootstrap(name: &str, packages: &str) -> PathBuf {
    let root = cache().join(name);
    let _turn = exclusive(name);
    if !root.try_exists().expect("look for a directory") {
        let new = cache().join(format!("{name}.{}", std::process::id()));
        std::fs::create_dir_all(cache()).expect("make a directory");
        crate::run(
            Command::new("mmdebstrap")
                .args(["--quiet", "--variant=minbase", "--mode=root", "--include", packages])
                .arg("--customize-hook=chroot \"$1\" useradd --create-home --uid 1000 user")
                .arg("bookworm")
                .arg(&new),
        );
        std::fs::rename(&new, &root).expect("put a directory in its place");
    }
    root
}

/// The package of a guest kernel.
///
/// # Panics
/// When there can be no virtual machines here: a test of them fails then, it does not skip.
#[must_use]
pub fn kernel_package() -> PathBuf {
    find().unwrap_or_else(|why| {
        panic!("no virtual machines: {why} (scripts/install-deps fetches what is needed)")
    })
}

/// Makes other processes that want the same wait until it is dropped: tests are processes of their own and share
/// files that take long to make.
#[must_use]
pub fn exclusive(name: &str) -> File {
    std::fs::create_dir_all(cache()).expect("make a directory");
    let lock = File::create(cache().join(format!("{name}.lock"))).expect("make a lock");
    lock.lock().expect("take a lock");
    lock
}

fn find() -> Result<PathBuf, String> {
    let version = Command::new(QEMU).arg("--version").output().map_err(|error| format!("{QEMU}: {error}"))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let numbers = version.split_whitespace().find_map(|word| {
        let (major, rest) = word.split_once('.')?;
        Some((major.parse::<u32>().ok()?, rest.split('.').next()?.parse::<u32>().ok()?))
    });
    if numbers.is_none_or(|numbers| numbers < QEMU_MIN) {
        return Err(format!("QEMU is too old: {}", version.lines().next().unwrap_or_default()));
    }
    let is_kernel = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("linux-image-") && name.ends_with(".deb")
    };
    let found = std::fs::read_dir(CACHE).into_iter().flatten().flatten().map(|entry| entry.path());
    found.filter(|path| is_kernel(path)).max().ok_or_else(|| format!("no linux-image-*.deb in {CACHE}"))
}
