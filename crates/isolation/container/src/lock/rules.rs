//! Finds the files that rules about programs name, for the kernel's tables.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use atoll_core::execution::{ExecutionAction, ExecutionRule};
use atoll_core::policy::Origin;
use atoll_witness::{Rule, Sender};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use super::files::{Image, Program};

/// Files that one policy may name.
pub(super) const FILES_MAX_COUNT: usize = 20_000;
/// Digests that are remembered.
const DIGESTS_MAX_COUNT: usize = 200_000;
/// Content that is read for one policy, bytes.
const READ_MAX_BYTES: u64 = 64 << 30;

/// Where rules' paths lead on the disk of a template, found before any sandbox had run on it. Kept on the disk itself,
/// outside the part that its sandbox sees: so it stays with the disk through sleep, forks and snapshots.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Places {
    /// The template's moment that they are of, milliseconds since the epoch.
    pub(crate) until_ms: u64,
    /// By what rules say.
    pub(crate) found: BTreeMap<String, Place>,
}

/// What one path names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    /// Files on the disk, by inode.
    inodes: Vec<u64>,
    /// The path without links, for what lies in layers.
    path: String,
    /// Whether something lies there.
    layers: bool,
}

/// Content of files that was read, by what says that it is still the same.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: Mutex<HashMap<Key, String>>,
}

/// Device, inode, size, time of the last change, algorithm.
type Key = (u64, u64, i64, i64, u64, bool);

/// An image to look rules up in.
#[derive(Debug)]
pub(crate) struct Lookup<'a> {
    /// With the disk of its template where it has one.
    pub(crate) image: &'a Image,
    /// Without.
    pub(crate) layers: &'a Image,
    /// Each of the layers, by what journals call it.
    pub(crate) named_layers: Vec<(String, PathBuf)>,
    /// The disk's device, where there is a disk of a template.
    pub(crate) disk: Option<u64>,
    /// Whether no sandbox has run on the disk yet.
    pub(crate) fresh: bool,
    pub(crate) places: &'a mut Places,
    pub(crate) digests: &'a Digests,
}

/// Finds what rules name.
///
/// # Errors
/// Names the rule and what is wrong with it.
pub(crate) fn resolve(rules: &[ExecutionRule], lookup: &mut Lookup<'_>) -> Result<Vec<Rule>, String> {
    let mut found: Vec<Rule> = Vec::new();
    let mut first: HashMap<(u64, u64), usize> = HashMap::new();
    let mut read_bytes = 0;
    for (number, rule) in rules.iter().enumerate() {
        let named = |why: String| format!("execution.rules[{number}]: {why}");
        let files = lookup.of_rule(rule, &mut read_bytes).map_err(named)?;
        let mut earlier = files.iter().map(|file| first.get(file).copied());
        if let Some(Some(one)) = earlier.next()
            && rules[one].action != rule.action
            && earlier.all(|place| place.is_some_and(|place| rules[place].action != rule.action))
        {
            let why =
                format!("contradicts execution.rules[{one}], which comes first and names the same programs");
            return Err(named(why));
        }
        for file in &files {
            first.entry(*file).or_insert(number);
        }
        if first.len() > FILES_MAX_COUNT {
            return Err(named(format!("rules name more than {FILES_MAX_COUNT} programs")));
        }
        let text = format!("rule {} ({rule})", number + 1);
        found.push(Rule { allow: rule.action == ExecutionAction::Allow, files, text });
    }
    Ok(found)
}

/// Finds the programs that rules of the network name.
///
/// # Errors
/// Names the program that is not there.
pub(crate) fn senders(origins: &[Origin], lookup: &mut Lookup<'_>) -> Result<Vec<Sender>, String> {
    let (mut read_bytes, mut count) = (0, 0);
    let mut find = |origin: &Origin| {
        if !origin.names_programs() {
            return Ok(Sender { origin: origin.clone(), files: Vec::new() });
        }
        let files = lookup.files(origin.path(), origin.digest(), &mut read_bytes);
        let files = files.map_err(|why| format!("egress: from {origin}: {why}"))?;
        // All sandboxes share the kernel's table.
        count += files.len();
        if count > FILES_MAX_COUNT {
            return Err(format!("egress: from {origin}: rules name more than {FILES_MAX_COUNT} programs"));
        }
        Ok(Sender { origin: origin.clone(), files })
    };
    origins.iter().map(&mut find).collect()
}

/// What the path of a place begins with that stands for a package.
const PACKAGE: &str = "package ";

impl Lookup<'_> {
    /// The files that a rule names: at least one.
    fn of_rule(&mut self, rule: &ExecutionRule, read_bytes: &mut u64) -> Result<Vec<(u64, u64)>, String> {
        match (&rule.layer, &rule.package) {
            (Some(layer), _) => self.of_layer(layer, rule.path.as_deref()),
            (None, Some(package)) => {
                let files = self.at(&format!("{PACKAGE}{package}"), None, read_bytes)?;
                if files.is_empty() {
                    return Err(format!("the package '{package}' has no programs"));
                }
                Ok(files)
            }
            (None, None) => self.files(rule.path.as_deref(), rule.digest.as_deref(), read_bytes),
        }
    }

    /// The programs of one layer, which nothing above or below it changes: a program that another layer hides cannot be
    /// run, so naming it is harmless.
    fn of_layer(&self, name: &str, path: Option<&str>) -> Result<Vec<(u64, u64)>, String> {
        let Some((_, dir)) = self.named_layers.iter().find(|(own, _)| own == name) else {
            let own: Vec<&str> = self.named_layers.iter().map(|(own, _)| own.as_str()).collect();
            return Err(format!("the image has no layer '{name}': it has {}", own.join(", ")));
        };
        let image = Image::open(std::slice::from_ref(dir), None, false)
            .map_err(|error| format!("the image cannot be read: {error}"))?;
        let (_, found) = look(&image, path.unwrap_or("/**"), None, self.digests, &mut 0)?;
        if found.is_empty() {
            return Err(format!("the layer '{name}' has no such programs"));
        }
        Ok(identities(&found))
    }

    /// The files that a path, a digest, or both name: device and inode of each, at least one.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn files(
        &mut self,
        path: Option<&str>,
        digest: Option<&str>,
        read_bytes: &mut u64,
    ) -> Result<Vec<(u64, u64)>, String> {
        let files = match (path, digest) {
            (Some(path), digest) => self.at(path, digest, read_bytes)?,
            (None, Some(digest)) => self.with(digest, read_bytes)?,
            (None, None) => Vec::new(),
        };
        match (files.is_empty(), path) {
            (false, _) => Ok(files),
            (true, Some(path)) => Err(format!("the image has no program '{path}'")),
            (true, None) => Err("the image has no program with this digest".to_owned()),
        }
    }

    fn at(&mut self, path: &str, digest: Option<&str>, read: &mut u64) -> Result<Vec<(u64, u64)>, String> {
        let Some(disk) = self.disk else {
            return look(self.layers, path, digest, self.digests, read).map(|(_, found)| identities(&found));
        };
        let asked = digest.map_or_else(|| path.to_owned(), |digest| format!("{path} {digest}"));
        if let Some(place) = self.places.found.get(&asked) {
            let mut files: Vec<_> = place.inodes.iter().map(|inode| (disk, *inode)).collect();
            if place.layers {
                let (_, found) = look(self.layers, &place.path, digest, self.digests, read)?;
                files.extend(identities(&found));
            }
            return Ok(files);
        }
        if !self.fresh {
            return Err(format!(
                "'{path}' cannot be looked up any more: this sandbox's template has a disk, on which somebody has worked since; \
                 name the program by its digest, or make the sandbox with this rule"
            ));
        }
        let (real, found) = look(self.image, path, digest, self.digests, read)?;
        let inodes = found.iter().filter(|(_, on_disk)| *on_disk).map(|((_, inode), _)| *inode).collect();
        let layers = found.iter().any(|(_, on_disk)| !on_disk);
        self.places.found.insert(asked, Place { inodes, path: real, layers });
        Ok(identities(&found))
    }

    /// Every program with this content.
    fn with(&self, digest: &str, read: &mut u64) -> Result<Vec<(u64, u64)>, String> {
        let mut files = Vec::new();
        self.image.all(&mut |program| {
            if self.digests.of(program, digest, read)? == digest {
                files.push(program.identity());
            }
            Ok(())
        })?;
        Ok(files)
    }
}

/// Device and inode of a file, and whether it is on the disk.
type Seen = ((u64, u64), bool);

/// Finds the programs at a path; gives the path without links, and the files.
fn look(
    image: &Image,
    path: &str,
    digest: Option<&str>,
    digests: &Digests,
    read: &mut u64,
) -> Result<(String, Vec<Seen>), String> {
    let mut found = Vec::new();
    let mut visit = |program: &Program<'_>| {
        if let Some(wanted) = digest {
            let is = digests.of(program, wanted, read)?;
            if is != wanted {
                return Err(format!("'{path}' is {is}, not {wanted}"));
            }
        }
        if found.len() >= FILES_MAX_COUNT {
            return Err(format!("'{path}' names more than {FILES_MAX_COUNT} programs"));
        }
        found.push((program.identity(), program.on_disk));
        Ok(())
    };
    let real = match path.strip_prefix(PACKAGE) {
        Some(package) => image.package(package, &mut visit).map(|()| path.to_owned())?,
        None => image.at(path, &mut visit)?,
    };
    Ok((real, found))
}

fn identities(found: &[Seen]) -> Vec<(u64, u64)> {
    found.iter().map(|(file, _)| *file).collect()
}

impl Digests {
    /// The digest of a program, of the kind that `like` has.
    fn of(&self, program: &Program<'_>, like: &str, read: &mut u64) -> Result<String, String> {
        let stat = program.stat;
        let blake3 = like.starts_with("blake3:");
        let key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec, blake3);
        if let Some(known) = self.known().get(&key) {
            return Ok(known.clone());
        }
        *read = read.saturating_add(u64::try_from(stat.st_size).unwrap_or(u64::MAX));
        if *read > READ_MAX_BYTES {
            return Err("its programs are too large to be read: give paths, too".to_owned());
        }
        let digest = program.open().and_then(|file| if blake3 { blake3_of(file) } else { sha256_of(file) });
        let digest = digest.map_err(|error| format!("the image cannot be read: {error}"))?;
        let mut known = self.known();
        if known.len() >= DIGESTS_MAX_COUNT {
            known.clear();
        }
        known.insert(key, digest.clone());
        Ok(digest)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Key, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn blake3_of(file: std::fs::File) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(format!("blake3:{}", hasher.finalize().to_hex()))
}

fn sha256_of(mut file: std::fs::File) -> io::Result<String> {
    let (mut hasher, mut bytes) = (sha2::Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes)? {
            0 => break,
            count => hasher.update(&bytes[..count]),
        }
    }
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}
