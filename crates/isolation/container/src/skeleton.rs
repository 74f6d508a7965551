//! The lower layer of the image `host`: everything but `/usr`, synthesised.
//!
//! A sandbox of the image `host` sees the host's `/usr` read-only and nothing else of the host. What a
//! program expects beside it is made here, once: users, name resolution, the dynamic loader's cache,
//! public certificates, alternatives that point into `/usr`. Nothing secret is copied: only files named
//! here, and certificates only from the directory of public ones.
//!
//! The directory is named after its content. A running sandbox stands on the one it was made with, so a
//! directory is never changed, and removed only when no sandbox is there.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use atoll_isolation::IsolationError;
use atoll_isolation_host::private_dir;

use crate::step::Step;

/// Counted up when what is built here changes.
const VERSION: u32 = 2;
/// Largest file that is copied from the host, bytes.
const COPY_MAX_BYTES: u64 = 4 << 20;
/// Most entries copied from one directory.
const ENTRIES_MAX_COUNT: usize = 4096;
/// The ordinary user, with a home.
const USER_ID: u32 = 1000;

/// Directories, with permissions.
const DIRECTORIES: [(&str, u32); 27] = [
    ("dev", 0o755),
    ("proc", 0o755),
    ("sys", 0o755),
    ("usr", 0o755),
    ("etc", 0o755),
    ("etc/alternatives", 0o755),
    ("etc/ld.so.conf.d", 0o755),
    ("etc/pam.d", 0o755),
    ("etc/profile.d", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/certs", 0o755),
    ("etc/sudoers.d", 0o750),
    ("home", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];

const PROFILE: &str = "\
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
if [ -n \"${BASH-}\" ]; then PS1='\\u@\\h:\\w\\$ '; elif [ \"$(id -u)\" -eq 0 ]; then PS1='# '; else PS1='$ '; fi
for part in /etc/profile.d/*.sh; do [ -r \"$part\" ] && . \"$part\"; done
unset part
";

/// Files with fixed content, with permissions. `hostname`, `hosts` and `resolv.conf` are each sandbox's own and are not here:
/// putting a file in the place of one below an overlay takes several steps more than making it.
const FILES: [(&str, u32, &str); 10] = [
    (
        "etc/passwd",
        0o644,
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "etc/group",
        0o644,
        "root:x:0:\ntty:x:5:\nstaff:x:50:\nusers:x:100:user\nuser:x:1000:\nnogroup:x:65534:\n",
    ),
    (
        "etc/shadow",
        0o640,
        "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
    ),
    ("etc/gshadow", 0o640, "root:*::\nuser:*::\n"),
    (
        "etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
    ),
    ("etc/profile", 0o644, PROFILE),
    ("etc/shells", 0o644, "/bin/sh\n/bin/bash\n/bin/dash\n"),
    (
        "etc/sudoers",
        0o440,
        "Defaults !fqdn\nroot ALL=(ALL:ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n@includedir /etc/sudoers.d\n",
    ),
    (
        "etc/pam.d/other",
        0o644,
        "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\npassword required pam_deny.so\nsession required pam_permit.so\n",
    ),
    (
        "etc/pam.d/sudo",
        0o644,
        "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n",
    ),
];

/// Symbolic links: where, and to what.
const LINKS: [(&str, &str); 5] = [
    ("var/run", "/run"),
    ("var/lock", "/run/lock"),
    ("etc/mtab", "/proc/self/mounts"),
    ("etc/os-release", "../usr/lib/os-release"),
    ("var/spool", "/var/cache"),
];

/// Files copied from the host where it has them: public, and needed by programs in `/usr`.
const COPIES: [&str; 9] = [
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/services",
    "etc/protocols",
    "etc/mime.types",
    "etc/login.defs",
    "etc/gai.conf",
    "etc/debian_version",
    "etc/ssl/openssl.cnf",
];

/// Directories whose plain files, and links into `/usr` or to neighbours, are copied.
const COPIED_DIRECTORIES: [&str; 3] = ["etc/alternatives", "etc/ld.so.conf.d", "etc/ssl/certs"];

/// Top-level names that lead into `/usr` on a merged system.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The layer.
#[derive(Debug)]
pub(crate) struct Skeleton {
    dir: PathBuf,
}

impl Skeleton {
    /// Finds or builds it below `parent`; removes others when `alone`, that is, no sandbox needs them.
    pub(crate) fn open(parent: &Path, alone: bool) -> Result<Self, IsolationError> {
        private_dir(parent).step("make the directory of the host image")?;
        let dir = parent.join(name().step("read the host's system files")?);
        for entry in fs::read_dir(parent).step("list the host images")? {
            let path = entry.step("list the host images")?.path();
            let half_made = path.extension().is_some();
            if half_made || (alone && path != dir) {
                fs::remove_dir_all(path).step("remove an old host image")?;
            }
        }
        if !dir.try_exists().step("find the host image")? {
            let new = dir.with_extension("new");
            build(&new)?;
            fs::rename(&new, &dir).step("put the host image in place")?;
        }
        Ok(Self { dir })
    }

    /// The layer's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A name that changes when the host's files do.
fn name() -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: String| {
        hasher.update(&text.len().to_le_bytes()).update(text.as_bytes());
    };
    add(format!("{VERSION} {DIRECTORIES:?} {FILES:?} {LINKS:?}"));
    for path in COPIES.iter().chain(&COPIED_DIRECTORIES) {
        let modified = fs::metadata(Path::new("/").join(path)).and_then(|meta| meta.modified()).ok();
        add(format!("{path} {modified:?}"));
    }
    add(format!("{:?}", fs::read_link("/etc/localtime").ok()));
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

fn build(root: &Path) -> Result<(), IsolationError> {
    DirBuilder::new().mode(0o755).create(root).step("make the host image")?;
    for (path, mode) in DIRECTORIES {
        let path = root.join(path);
        fs::create_dir(&path).step("make a directory of the host image")?;
        // The process's umask does not apply to this.
        fs::set_permissions(&path, Permissions::from_mode(mode))
            .step("make a directory of the host image")?;
    }
    for (path, mode, content) in FILES {
        let path = root.join(path);
        fs::write(&path, content).step("write a file of the host image")?;
        fs::set_permissions(&path, Permissions::from_mode(mode)).step("write a file of the host image")?;
    }
    for (path, target) in LINKS {
        symlink(target, root.join(path)).step("make a link of the host image")?;
    }
    chown(root.join("home/user"), Some(USER_ID), Some(USER_ID)).step("give away the home directory")?;
    link_merged(root)?;
    for path in COPIES {
        copy_file(&Path::new("/").join(path), &root.join(path)).step(format!("copy /{path}"))?;
    }
    for path in COPIED_DIRECTORIES {
        copy_directory(&Path::new("/").join(path), &root.join(path)).step(format!("copy /{path}"))?;
    }
    if let Ok(zone) = fs::read_link("/etc/localtime")
        && zone.starts_with("/usr/share/zoneinfo")
    {
        symlink(zone, root.join("etc/localtime")).step("set the time zone of the host image")?;
    }
    Ok(())
}

/// `/bin` and its like lead into `/usr`, as on the host.
fn link_merged(root: &Path) -> Result<(), IsolationError> {
    for name in MERGED {
        let place = Path::new("/").join(name);
        match fs::read_link(&place) {
            Ok(target) => symlink(target, root.join(name)).step("make a link of the host image")?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => {
                return Err(IsolationError::Unavailable(format!(
                    "the image 'host' needs a host whose {} is a link into /usr",
                    place.display()
                )));
            }
        }
    }
    Ok(())
}

/// Copies a plain file, if it is there and small.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::metadata(from) {
        Ok(meta) if meta.is_file() && meta.len() <= COPY_MAX_BYTES => {
            fs::write(to, fs::read(from)?)?;
            fs::set_permissions(to, Permissions::from_mode(0o644))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Copies what is plain and public of a directory's own entries.
fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries.take(ENTRIES_MAX_COUNT) {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let link = fs::read_link(entry.path())?;
            // A bare name is a neighbour; anything else could show that something of the host exists.
            if link.starts_with("/usr") || link.components().count() == 1 {
                symlink(link, target)?;
            }
        } else if kind.is_file() && !holds_private_key(&entry.path())? {
            copy_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

fn holds_private_key(path: &Path) -> io::Result<bool> {
    const MARK: &[u8] = b"PRIVATE KEY";
    if fs::metadata(path)?.len() > COPY_MAX_BYTES {
        return Ok(false);
    }
    let content = fs::read(path)?;
    Ok(content.windows(MARK.len()).any(|window| window == MARK))
}
