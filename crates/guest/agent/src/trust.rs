//! Trust: makes programs in the sandbox accept certificates of the host's gateway.
//!
//! Where an image has lists of certificate authorities, this one is added to them; where it has none, one is made.
//! Files of our own serve the environment variables that programs look at. A list that is read-only in the image stays
//! as it is: those files are then the only way.

mod java;

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use atoll_guest_protocol::messages::{Failure, InstallTrust};
use rustix::fs::{OFlags, RenameFlags};

use crate::failing::{Stop, invalid};
use crate::files::place::{Place, canonical, is_directory};
use crate::files::{make_directories, open_regular};
use crate::operations::Answer;
use crate::users::Database;

/// Our own files.
const DIRECTORY: &str = "/etc/atoll";
const CA: &str = "/etc/atoll/ca.pem";
const BUNDLE: &str = "/etc/atoll/ca-bundle.pem";
const JAVA_BUNDLE: &str = "/etc/atoll/ca-bundle.jks";
/// Lists that programs read, by distribution. The first that is there is the base of our own.
const LISTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];
/// Directories from which a distribution's own tools make those lists anew, and the name of ours there.
const SOURCES: [&str; 2] =
    ["/usr/local/share/ca-certificates/atoll.crt", "/etc/pki/ca-trust/source/anchors/atoll.pem"];
/// Largest list that is read, bytes.
const LIST_MAX_BYTES: u64 = 8 << 20;
/// Permission bits of directories that are made.
const DIRECTORY_MODE: u32 = 0o755;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// `trust`. May be repeated: an authority that is in a list already is not added again.
pub(crate) fn install(request: &InstallTrust) -> Result<Answer, Stop> {
    let ca = request.ca_pem.trim();
    if !ca.starts_with(BEGIN) {
        return Err(invalid("that is no certificate").into());
    }
    let lists: Vec<(PathBuf, String)> = LISTS.iter().filter_map(|path| read_list(Path::new(path))).collect();
    let base = lists.first().map_or(request.roots_pem.as_str(), |(_, text)| text);
    let failed = |error: io::Error| invalid(format!("cannot write below {DIRECTORY}: {error}"));
    let told = |failure: Failure| invalid(format!("cannot write below {DIRECTORY}: {}", failure.message));
    let owner = Database::read().identity("")?;
    make_directories(Path::new(DIRECTORY), DIRECTORY_MODE, &owner).map_err(told)?;
    let bundle = with(base, ca);
    replace(Path::new(CA), format!("{ca}\n").as_bytes()).map_err(failed)?;
    replace(Path::new(BUNDLE), bundle.as_bytes()).map_err(failed)?;
    replace(Path::new(JAVA_BUNDLE), &java::store(&bundle)).map_err(failed)?;
    if lists.is_empty() {
        let path = Path::new(LISTS[0]);
        // Best effort, as all that follows: the image may be read-only there.
        drop(path.parent().map(|above| make_directories(above, DIRECTORY_MODE, &owner)));
        drop(replace(path, bundle.as_bytes()));
    }
    for (path, text) in lists {
        if !text.contains(ca) {
            drop(replace(&path, with(&text, ca).as_bytes()));
        }
    }
    for source in SOURCES {
        let source = Path::new(source);
        if source.parent().is_some_and(is_directory) {
            drop(replace(source, format!("{ca}\n").as_bytes()));
        }
    }
    Ok(Answer::done(0))
}

/// The list, with one certificate more.
fn with(list: &str, ca: &str) -> String {
    let list = list.trim_end();
    if list.contains(ca) {
        return format!("{list}\n");
    }
    let gap = if list.is_empty() { "" } else { "\n" };
    format!("{list}{gap}{ca}\n")
}

/// A list that is there, with the path behind all links.
fn read_list(path: &Path) -> Option<(PathBuf, String)> {
    let path = canonical(path).ok()?;
    let mut text = String::new();
    open_regular(&path).ok()?.take(LIST_MAX_BYTES).read_to_string(&mut text).ok()?;
    text.contains(BEGIN).then_some((path, text))
}

/// Writes a file anew: a program that reads it meanwhile gets the old file or the new one, whole.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = Place::of(&path.with_added_extension("atoll-new"))?;
    // A draft of a process that died.
    drop(draft.remove_file());
    let mut file = draft.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o644)?;
    file.write_all(bytes)?;
    Ok(draft.rename(&Place::of(path)?, RenameFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_certificate_is_added_once() {
        let (a, b) = (format!("{BEGIN}\nA\n"), format!("{BEGIN}\nB\n"));
        let once = with(&a, b.trim());
        assert_eq!(once, format!("{BEGIN}\nA\n{BEGIN}\nB\n"));
        assert_eq!(with(&once, b.trim()), once);
        assert_eq!(with("", b.trim()), b);
    }

    #[test]
    fn lists_are_found_behind_links_and_replaced_whole() {
        let dir = tempfile::Builder::new().prefix("atoll-trust").tempdir().unwrap();
        let real = dir.path().join("real.pem");
        fs::write(&real, format!("{BEGIN}\nA\n")).unwrap();
        let link = dir.path().join("link.pem");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let (path, text) = read_list(&link).unwrap();
        assert_eq!(path, fs::canonicalize(&real).unwrap());
        replace(&path, with(&text, "X").as_bytes()).unwrap();
        assert!(fs::read_to_string(&link).unwrap().ends_with("A\nX\n"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no draft stays");
        assert!(read_list(dir.path()).is_none() && read_list(&dir.path().join("none")).is_none());
    }
}
