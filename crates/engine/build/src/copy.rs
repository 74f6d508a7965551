//! The files that a `COPY` takes from the context, and their part of the cache key.

use std::collections::BTreeMap;

use atoll_core::error::shorten;
use atoll_core::{Code, Error, Result};

use crate::Ignore;
use crate::budget::Budget;
use crate::context::{ContextIndex, Entry};
use crate::glob;
use crate::place::Place;
use crate::recipe::Source;

/// A path without `.`, `..`, doubled and leading slashes; `None` when it leads above its root.
#[must_use]
pub fn clean(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether a source has `*`, `?` or `[`.
#[must_use]
pub fn is_pattern(source: &str) -> bool {
    glob::is_pattern(source)
}

/// Whether a clean path matches a clean pattern, as `COPY` reads it: `*` stays inside one part. What that takes is counted.
#[must_use]
pub fn matches(pattern: &str, path: &str, budget: &Budget) -> bool {
    glob::matches(pattern, path, false, budget)
}

/// An absolute path of a sandbox: `path` as seen from `workdir`, without `.` and `..`.
#[must_use]
pub fn absolute(workdir: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            // Above the root is the root.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Whether a destination says that it is a directory.
#[must_use]
pub fn names_directory(destination: &str) -> bool {
    destination.ends_with('/')
        || destination == "."
        || destination.ends_with("/.")
        || destination.ends_with("..")
}

/// One thing that is written below the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name below the destination.
    pub name: String,
    /// Where it comes from.
    pub from: MemberSource,
}

/// Where a member comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberSource {
    /// A path of the context, and the entry there.
    Context(String, Entry),
    /// A file that stands in the Dockerfile.
    Inline(String),
}

/// What a `COPY` from the context writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// In the order in which they are written: a directory comes before what is in it.
    pub members: Vec<Member>,
    /// It is a single file, whose destination may be its new name.
    pub single: bool,
}

impl Selection {
    /// The part of it that goes into the cache key: names, kinds, permissions and contents, not times.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for member in &self.members {
            field(member.name.as_bytes());
            match &member.from {
                MemberSource::Inline(content) => {
                    field(b"inline");
                    field(content.as_bytes());
                }
                MemberSource::Context(_, Entry::Directory { mode }) => {
                    field(b"directory");
                    field(&mode.to_le_bytes());
                }
                MemberSource::Context(_, Entry::File { mode, digest, .. }) => {
                    field(b"file");
                    field(&mode.to_le_bytes());
                    field(digest);
                }
                MemberSource::Context(_, Entry::Link { target }) => {
                    field(b"link");
                    field(target.as_bytes());
                }
            }
        }
        *hasher.finalize().as_bytes()
    }
}

/// Where sources are looked for, and how.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    /// The entries of the context.
    pub context: &'a ContextIndex,
    /// The paths that are left out.
    pub ignore: &'a Ignore,
    /// A link that a source names is copied as a link, even if it leads outside.
    pub keep_links: bool,
    /// What is left for the plan.
    pub budget: &'a Budget,
}

/// What is selected so far, by name: a later source replaces an earlier one of the same name, as it would on disk.
struct Members<'a> {
    place: Place,
    budget: &'a Budget,
    by_name: BTreeMap<String, MemberSource>,
}

impl Members<'_> {
    fn insert(&mut self, name: String, from: MemberSource) -> Result<()> {
        let bytes = match &from {
            MemberSource::Inline(content) => content.len(),
            MemberSource::Context(path, Entry::Link { target }) => path.len() + target.len(),
            MemberSource::Context(path, Entry::File { .. } | Entry::Directory { .. }) => path.len(),
        };
        self.budget.keep(size_of::<Member>() + name.len() + bytes);
        self.budget.check(self.place)?;
        self.by_name.insert(name, from);
        Ok(())
    }

    /// What is in a directory, but for what is left out.
    fn insert_tree(&mut self, directory: &str, from: Files<'_>) -> Result<()> {
        for (below, entry) in from.context.below(directory) {
            let real = if directory.is_empty() { below.to_owned() } else { format!("{directory}/{below}") };
            self.budget.work(real.len() + 1);
            self.budget.check(self.place)?;
            if !from.ignore.ignores_within(&real, self.budget) {
                self.insert(below.to_owned(), MemberSource::Context(real, entry.clone()))?;
            }
        }
        Ok(())
    }
}

/// Finds what the sources mean in the context.
///
/// # Errors
/// [`Code::BuildFileNotFound`] when there is none, [`Code::BuildContextInvalid`] when one leads outside,
/// [`Code::BuildFileInvalid`] when several things are to become one file, [`Code::TooLarge`] when the budget is spent. All with
/// the place.
pub fn select(place: Place, sources: &[Source], destination: &str, from: Files<'_>) -> Result<Selection> {
    let mut members = Members { place, budget: from.budget, by_name: BTreeMap::new() };
    let mut files = 0_usize;
    let mut trees = 0_usize;
    for source in sources {
        let path = match source {
            Source::Inline { name, content } => {
                let name = name.rsplit('/').next().unwrap_or(name);
                members.insert(name.to_owned(), MemberSource::Inline(content.clone()))?;
                files += 1;
                continue;
            }
            Source::Address(_) => return Err(place.invalid("an address is no file of the context")),
            Source::Path(path) => path,
        };
        for found in found(place, path, from)? {
            let entry = from.context.entries.get(&found.real);
            match entry {
                Some(Entry::File { .. } | Entry::Link { .. }) => {
                    let entry = entry.cloned().unwrap_or(Entry::Directory { mode: 0o755 });
                    members.insert(found.name, MemberSource::Context(found.real, entry))?;
                    files += 1;
                }
                // A directory, or the root: what is in it.
                Some(Entry::Directory { .. }) | None => {
                    trees += 1;
                    members.insert_tree(&found.real, from)?;
                }
            }
        }
    }
    let single = files == 1 && trees == 0;
    if !single && trees + files > 1 && !names_directory(destination) {
        return Err(place
            .invalid(format_args!(
                "several sources cannot become '{}', which is not written as a directory",
                shorten(destination)
            ))
            .hint("end the destination with '/'"));
    }
    // What was told last may have been told without a budget.
    from.budget.check(place)?;
    let members = members.by_name.into_iter().map(|(name, from)| Member { name, from }).collect();
    Ok(Selection { members, single })
}

struct Found {
    /// The last part of the path that the source names.
    name: String,
    /// Its path in the context, after following links that are not to be kept.
    real: String,
}

fn found(place: Place, path: &str, from: Files<'_>) -> Result<Vec<Found>> {
    let Files { context, ignore, keep_links, budget } = from;
    let Some(wanted) = clean(path) else {
        return Err(place
            .error(Code::BuildContextInvalid, format_args!("'{}' lies outside of the context", shorten(path)))
            .hint("paths are relative to the context; build from a directory that holds everything"));
    };
    let placed = |error: Error| Error { message: format!("{place}: {}", error.message), ..error };
    let found = |wanted: &str| -> Result<Option<Found>> {
        let kept_link = if keep_links { context.link(wanted, budget).map_err(placed)? } else { None };
        let real = match kept_link {
            Some(link) => link,
            None => match context.resolve(wanted, budget).map_err(placed)? {
                Some(real) => real,
                None => return Ok(None),
            },
        };
        // A directory may be left out and still contain files that a `!` pattern brings back.
        let kept = real.is_empty()
            || !ignore.ignores_within(&real, budget)
            || context
                .below(&real)
                .any(|(below, _)| !ignore.ignores_within(&format!("{real}/{below}"), budget));
        budget.check(place)?;
        let name = wanted.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(kept.then_some(Found { name, real }))
    };
    let mut all = Vec::new();
    if is_pattern(&wanted) {
        for candidate in context.entries.keys() {
            budget.check(place)?;
            if matches(&wanted, candidate, budget) {
                all.extend(found(candidate)?);
            }
        }
    } else {
        all.extend(found(&wanted)?);
    }
    if !all.is_empty() {
        return Ok(all);
    }
    let error =
        place.error(Code::BuildFileNotFound, format_args!("'{}' is not in the context", shorten(path)));
    Err(if context.entries.contains_key(&wanted) {
        error.hint("it is left out by the .dockerignore")
    } else {
        error.hint("paths are relative to the context, whatever the Dockerfile's own place")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place::Line { line: 7, column: 6 };

    fn context(files: &[(&str, &str)]) -> ContextIndex {
        let mut index = ContextIndex::default();
        for (path, content) in files {
            for (at, _) in path.match_indices('/') {
                index.entries.insert(path[..at].to_owned(), Entry::Directory { mode: 0o755 });
            }
            let digest = *blake3::hash(content.as_bytes()).as_bytes();
            let entry = Entry::File { mode: 0o644, size: content.len() as u64, digest };
            index.entries.insert((*path).to_owned(), entry);
        }
        index
    }

    fn names(sources: &[&str], destination: &str, ignore: &str) -> Result<(Vec<String>, bool)> {
        let context = context(&[("a", "1"), ("d/b", "2"), ("d/e/c", "3"), ("x.txt", "4"), ("y.txt", "5")]);
        let sources: Vec<_> = sources.iter().map(|path| Source::Path((*path).to_owned())).collect();
        let selection = select(
            PLACE,
            &sources,
            destination,
            Files {
                context: &context,
                ignore: &Ignore::parse(ignore),
                keep_links: false,
                budget: &Budget::default(),
            },
        )?;
        Ok((selection.members.into_iter().map(|member| member.name).collect(), selection.single))
    }

    #[test]
    fn what_docker_would_take() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&["a"], "/b", "").unwrap(), (list(&["a"]), true));
        assert_eq!(names(&["d"], "/x", "").unwrap(), (list(&["b", "e", "e/c"]), false));
        assert_eq!(names(&["d/e/../b"], "/x/", "").unwrap(), (list(&["b"]), true));
        assert_eq!(names(&["*.txt"], "/x/", "").unwrap(), (list(&["x.txt", "y.txt"]), false));
        assert_eq!(names(&["."], "/x", "*.txt\nd").unwrap(), (list(&["a"]), false));
        assert_eq!(names(&["d"], "/x", "d\n!d/b").unwrap(), (list(&["b"]), false));
        let refused = |sources: &[&str], destination: &str, ignore: &str| {
            let error = names(sources, destination, ignore).unwrap_err();
            assert!(error.message.starts_with("line 7, column 6: "), "{error}");
            error.code
        };
        assert_eq!(refused(&["../a"], "/x", ""), Code::BuildContextInvalid);
        assert_eq!(refused(&["nope"], "/x", ""), Code::BuildFileNotFound);
        assert_eq!(refused(&["*.md"], "/x/", ""), Code::BuildFileNotFound);
        assert_eq!(refused(&["a"], "/x", "a"), Code::BuildFileNotFound);
        assert_eq!(refused(&["a", "x.txt"], "/x", ""), Code::BuildFileInvalid);
    }

    #[test]
    fn links_are_followed_or_kept() {
        let mut context = context(&[("d/f", "1")]);
        for (name, target) in [("d/in", "f"), ("d/out", "/etc/passwd"), ("d/none", "nowhere")] {
            context.entries.insert(name.to_owned(), Entry::Link { target: target.to_owned() });
        }
        let members = |source: &str, keep_links| {
            let (ignore, budget) = (Ignore::default(), Budget::default());
            let from = Files { context: &context, ignore: &ignore, keep_links, budget: &budget };
            let selection = select(PLACE, &[Source::Path(source.to_owned())], "/x/", from)?;
            let links = |member: Member| match member.from {
                MemberSource::Context(_, Entry::Link { target }) => format!("{}→{target}", member.name),
                _ => member.name,
            };
            Ok::<_, Error>(selection.members.into_iter().map(links).collect::<Vec<_>>())
        };
        let kept = ["f", "in→f", "none→nowhere", "out→/etc/passwd"];
        assert_eq!(members("d/*", true).unwrap(), kept);
        assert_eq!(members("d", false).unwrap(), kept);
        assert_eq!(members("d/in", true).unwrap(), ["in→f"]);
        assert_eq!(members("d/in", false).unwrap(), ["in"]);
        assert_eq!(members("d/*", false).unwrap_err().code, Code::BuildContextInvalid);
        assert_eq!(members("d/none", false).unwrap_err().code, Code::BuildFileNotFound);
    }

    #[test]
    fn the_digest_follows_names_and_contents() {
        let digest = |files: &[(&str, &str)]| {
            let source = [Source::Path(".".to_owned())];
            let (context, ignore, budget) = (context(files), Ignore::default(), Budget::default());
            let from = Files { context: &context, ignore: &ignore, keep_links: false, budget: &budget };
            select(PLACE, &source, "/", from).unwrap().digest()
        };
        let first = digest(&[("a", "1"), ("b", "2")]);
        assert_eq!(first, digest(&[("b", "2"), ("a", "1")]));
        assert_ne!(first, digest(&[("a", "1"), ("b", "3")]));
        assert_ne!(first, digest(&[("a", "1"), ("c", "2")]));
    }

    #[test]
    fn absolute_paths() {
        for (workdir, path, want) in [
            ("/w", "x", "/w/x"),
            ("/w", ".", "/w"),
            ("/w", "../x", "/x"),
            ("/", "../..", "/"),
            ("/w", "/a//b/", "/a/b"),
        ] {
            assert_eq!(absolute(workdir, path), want);
        }
        assert!(names_directory("./") && names_directory(".") && !names_directory("a.b"));
    }
}
