//! The programs of an image: found by path as the sandbox sees them, or one after another, and named as the kernel knows them.
//!
//! Images and sandboxes filled the layers and disks: no link is followed out of them, and opening a file in them never
//! blocks. A file that the sandbox has changed on the disk since its template was made counts as absent.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, openat, openat2, readlinkat,
    statat,
};
use rustix::io::Errno;

/// Links that are followed on the way to one file, as the kernel does.
const LINKS_MAX_COUNT: usize = 40;
/// Directories in each other.
const DEPTH_MAX_COUNT: usize = 64;
/// Names that are looked at for one policy.
const NAMES_MAX_COUNT: usize = 4_000_000;
/// Marks a directory as opaque: it hides the same directory of the layers below.
const OPAQUE: &std::ffi::CStr = c"trusted.overlay.opaque";
const ANY_EXECUTE: u32 = 0o111;
/// Where dpkg keeps which files a package has.
const PACKAGE_LISTS: &str = "/var/lib/dpkg/info";
/// Largest such list, bytes, and files of one package.
const PACKAGE_LIST_MAX_BYTES: u64 = 8 << 20;
const PACKAGE_FILES_MAX_COUNT: usize = 100_000;

/// A root: layers with the disk of a template above.
#[derive(Debug)]
pub(crate) struct Image {
    /// The topmost first.
    layers: Vec<Place>,
    /// The host's `/usr`, in the place of the directory of that name.
    usr: Option<OwnedFd>,
}

/// A directory of one layer.
#[derive(Debug)]
struct Place {
    dir: OwnedFd,
    /// The directory is on the disk: the sandbox itself made every change at this moment or later, nanoseconds since
    /// the epoch.
    until_ns: Option<i128>,
}

/// A directory as the sandbox sees it: of several layers, the topmost first.
type Level = Vec<Place>;

/// A file that could be run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program<'a> {
    dir: BorrowedFd<'a>,
    name: &'a str,
    /// What the file system says of it.
    pub(crate) stat: &'a Stat,
    /// Whether it is on the disk, above the image's layers.
    pub(crate) on_disk: bool,
}

enum Found {
    Nothing,
    Directory(Level),
    Link(String),
    /// Of which layer.
    File(usize, Box<Stat>),
    Other,
}

impl Program<'_> {
    /// Device and inode.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(openat2(self.dir, self.name, flags, Mode::empty(), inside())?))
    }
}

impl Image {
    /// `layers` are the lowest first. `disk` is the directory above them, with the moment at which its template was made, milliseconds since
    /// the epoch.
    pub(crate) fn open(
        layers: &[std::path::PathBuf],
        disk: Option<(OwnedFd, u64)>,
        with_usr: bool,
    ) -> std::io::Result<Self> {
        let directory = |path: &Path| openat(CWD, path, directories(), Mode::empty());
        let mut found = Vec::new();
        if let Some((dir, until_ms)) = disk {
            found.push(Place { dir, until_ns: Some(i128::from(until_ms) * 1_000_000) });
        }
        for layer in layers.iter().rev() {
            found.push(Place { dir: directory(layer)?, until_ns: None });
        }
        let usr = if with_usr { Some(directory(Path::new("/usr"))?) } else { None };
        Ok(Self { layers: found, usr })
    }

    /// Visits the programs that a pattern names: the one at a path, through links; with `/*` at the end all in a directory, with `/**` all
    /// below it. Gives the path without links of the one program, or of the pattern.
    pub(crate) fn at(
        &self,
        pattern: &str,
        visit: &mut dyn FnMut(&Program<'_>) -> Result<(), String>,
    ) -> Result<String, String> {
        let (dir, end) = match (pattern.strip_suffix("/**"), pattern.strip_suffix("/*")) {
            (Some(dir), _) => (dir, "/**"),
            (None, Some(dir)) => (dir, "/*"),
            (None, None) => return self.one(pattern, visit),
        };
        match self.resolve(dir)? {
            (path, End::Directory(level)) => {
                self.walk(&level, path == "/", end == "/**", DEPTH_MAX_COUNT, &mut 0, visit)?;
                Ok(format!("{}{end}", path.trim_end_matches('/')))
            }
            (_, End::File(..)) => Err(format!("'{dir}' is no directory")),
        }
    }

    /// Visits the programs of a Debian package, by the image's own list of its files. The maker of the image answers
    /// for what is in that list. No link leads out of the image, and no program is visited twice.
    pub(crate) fn package(
        &self,
        name: &str,
        visit: &mut dyn FnMut(&Program<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for path in self.package_list(name)?.lines().filter(|path| path.starts_with('/')) {
            if seen.len() > PACKAGE_FILES_MAX_COUNT {
                return Err(format!("the package '{name}' has more than {PACKAGE_FILES_MAX_COUNT} files"));
            }
            // The list also has directories, and files that a layer above removed.
            let Ok((_, End::File(level, at, name, stat))) = self.resolve(path) else { continue };
            if stat.st_mode & ANY_EXECUTE != 0 && seen.insert((stat.st_dev, stat.st_ino)) {
                visit(&program(&level, at, &name, &stat))?;
            }
        }
        Ok(())
    }

    /// The list of a package's files. dpkg names it after the architecture, too, where several can be installed at a time.
    fn package_list(&self, name: &str) -> Result<String, String> {
        let none = || format!("the image has no Debian package '{name}'");
        let level = match self.resolve(PACKAGE_LISTS)? {
            (_, End::Directory(level)) => level,
            (_, End::File(..)) => return Err(none()),
        };
        let (own, of_arch) = (format!("{name}.list"), format!("{name}:"));
        let is_it = |file: &String| {
            *file == own || file.strip_prefix(&of_arch).is_some_and(|rest| rest.ends_with(".list"))
        };
        let unread = |error: Errno| format!("the image cannot be read: {error}");
        let mut text = String::new();
        let mut found = false;
        for file in names(&level).map_err(unread)?.into_iter().filter(is_it) {
            let Found::File(at, stat) = self.step(&level, false, &file).map_err(unread)? else { continue };
            let unread = |error: std::io::Error| format!("{PACKAGE_LISTS}/{file} cannot be read: {error}");
            let list = program(&level, at, &file, &stat).open().map_err(unread)?;
            let before = text.len();
            std::io::Read::take(list, PACKAGE_LIST_MAX_BYTES + 1)
                .read_to_string(&mut text)
                .map_err(unread)?;
            if (text.len() - before) as u64 > PACKAGE_LIST_MAX_BYTES {
                return Err(format!("{PACKAGE_LISTS}/{file} has more than {PACKAGE_LIST_MAX_BYTES} bytes"));
            }
            text.push('\n');
            found = true;
        }
        if found { Ok(text) } else { Err(none()) }
    }

    /// Visits all of them.
    pub(crate) fn all(
        &self,
        visit: &mut dyn FnMut(&Program<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.walk(&self.root()?, true, true, DEPTH_MAX_COUNT, &mut 0, visit)
    }

    fn one(
        &self,
        path: &str,
        visit: &mut dyn FnMut(&Program<'_>) -> Result<(), String>,
    ) -> Result<String, String> {
        let (real, End::File(level, at, name, stat)) = self.resolve(path)? else {
            return Err(format!("'{path}' is a directory: write '{path}/*' for the programs in it"));
        };
        visit(&program(&level, at, &name, &stat))?;
        Ok(real)
    }

    fn root(&self) -> Result<Level, String> {
        let copy = |place: &Place| {
            let dir = place.dir.try_clone().map_err(|error| format!("the image cannot be read: {error}"))?;
            Ok(Place { dir, until_ns: place.until_ns })
        };
        self.layers.iter().map(copy).collect()
    }

    /// Where a path leads, through links, and the path without them.
    fn resolve(&self, path: &str) -> Result<(String, End), String> {
        let none = || format!("the image has no '{path}'");
        let mut left: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
        let (mut levels, mut names, mut links) = (vec![self.root()?], Vec::<String>::new(), 0);
        while let Some(name) = left.pop() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    if names.pop().is_some() {
                        levels.pop();
                    }
                    continue;
                }
                _ if levels.len() > DEPTH_MAX_COUNT => return Err(none()),
                _ => {}
            }
            let here = levels.last().ok_or_else(none)?;
            match self.step(here, names.is_empty(), &name).map_err(|error| format!("{}: {error}", none()))? {
                Found::Directory(level) => {
                    levels.push(level);
                    names.push(name);
                }
                Found::Link(to) => {
                    links += 1;
                    if links > LINKS_MAX_COUNT {
                        return Err(format!("'{path}' leads in a circle"));
                    }
                    if to.starts_with('/') {
                        levels.truncate(1);
                        names.clear();
                    }
                    left.extend(to.rsplit('/').map(str::to_owned));
                }
                Found::File(at, stat) if left.is_empty() => {
                    let level = levels.pop().ok_or_else(none)?;
                    names.push(name.clone());
                    return Ok((format!("/{}", names.join("/")), End::File(level, at, name, stat)));
                }
                Found::Nothing | Found::File(..) | Found::Other => return Err(none()),
            }
        }
        Ok((format!("/{}", names.join("/")), End::Directory(levels.pop().ok_or_else(none)?)))
    }

    /// What a name in a directory is.
    fn step(&self, level: &Level, is_root: bool, name: &str) -> rustix::io::Result<Found> {
        if let (Some(usr), true, "usr") = (&self.usr, is_root, name) {
            let dir = openat(usr, ".", directories(), Mode::empty())?;
            return Ok(Found::Directory(vec![Place { dir, until_ns: None }]));
        }
        let mut found = Level::new();
        for (at, place) in level.iter().enumerate() {
            let stat = match statat(&place.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Directory && place.until_ns.is_some_and(|until| changed_ns(&stat) >= until) {
                continue;
            }
            match kind {
                FileType::Directory => {
                    let dir = openat2(&place.dir, name, directories(), Mode::empty(), inside())?;
                    let is_opaque = is_opaque(dir.as_fd());
                    found.push(Place { dir, until_ns: place.until_ns });
                    if is_opaque {
                        break;
                    }
                }
                _ if !found.is_empty() => break,
                FileType::Symlink => {
                    let to = readlinkat(&place.dir, name, Vec::new())?;
                    return Ok(to.into_string().map_or(Found::Other, Found::Link));
                }
                FileType::RegularFile => return Ok(Found::File(at, Box::new(stat))),
                // A whiteout: it hides a file of the layers below.
                FileType::CharacterDevice if stat.st_rdev == 0 => return Ok(Found::Nothing),
                _ => return Ok(Found::Other),
            }
        }
        Ok(if found.is_empty() { Found::Nothing } else { Found::Directory(found) })
    }

    fn walk(
        &self,
        level: &Level,
        is_root: bool,
        deep: bool,
        depth: usize,
        seen: &mut usize,
        visit: &mut dyn FnMut(&Program<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let failed = |error: Errno| format!("the image cannot be read: {error}");
        let mut names = names(level).map_err(failed)?;
        if is_root && self.usr.is_some() {
            names.insert("usr".to_owned());
        }
        *seen += names.len();
        if *seen > NAMES_MAX_COUNT || depth == 0 {
            return Err(format!("the image has more than {NAMES_MAX_COUNT} files, or lies too deep"));
        }
        for name in names {
            match self.step(level, is_root, &name).map_err(failed)? {
                Found::File(at, stat) if stat.st_mode & ANY_EXECUTE != 0 => {
                    visit(&program(level, at, &name, &stat))?;
                }
                Found::Directory(below) if deep => self.walk(&below, false, true, depth - 1, seen, visit)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where a path ends.
enum End {
    Directory(Level),
    /// The directory, which of its layers, the name.
    File(Level, usize, String, Box<Stat>),
}

fn program<'a>(level: &'a Level, at: usize, name: &'a str, stat: &'a Stat) -> Program<'a> {
    Program { dir: level[at].dir.as_fd(), name, stat, on_disk: level[at].until_ns.is_some() }
}

/// The names in a directory, of all layers. One that is no text can be named by no rule.
fn names(level: &Level) -> rustix::io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for place in level {
        for entry in Dir::read_from(&place.dir)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => drop(found.insert(name.to_owned())),
            }
        }
    }
    Ok(found)
}

fn directories() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn inside() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

fn is_opaque(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0; 8];
    fgetxattr(dir, OPAQUE, &mut value[..]).is_ok_and(|count| count > 0 && value[0] == b'y')
}

/// When it was changed last, as the kernel reports it, nanoseconds since the epoch.
fn changed_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)
}
