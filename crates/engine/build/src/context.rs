//! What is in the context: names, kinds and digests, without the bytes.

use std::collections::BTreeMap;

use atoll_core::error::shorten;
use atoll_core::{Code, Error, Result};

use crate::budget::Budget;

/// Most links that one path may lead through.
const LINKS_MAX_COUNT: u32 = 40;

/// An entry of the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A file.
    File {
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
        /// Of the content.
        digest: [u8; 32],
    },
    /// A symbolic link.
    Link {
        /// Where it points.
        target: String,
    },
}

/// Every entry by its path: relative, parts joined by `/`, without `.` and `..`. The root is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextIndex {
    /// The entries.
    pub entries: BTreeMap<String, Entry>,
}

impl ContextIndex {
    /// Follows links in a path that is in clean form, the last one too. Gives `None` when there is nothing; the
    /// empty path is the root. The way is counted: links can make it long.
    ///
    /// # Errors
    /// [`Code::BuildContextInvalid`] when a link leads outside or in circles.
    pub fn resolve(&self, path: &str, budget: &Budget) -> Result<Option<String>> {
        let mut left: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut place: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = left.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    if place.pop().is_none() {
                        return Err(outside(path));
                    }
                    continue;
                }
                _ => place.push(part),
            }
            let here = place.join("/");
            budget.work(here.len() + 1);
            match self.entries.get(&here) {
                None => return Ok(None),
                Some(Entry::Link { target }) => {
                    links += 1;
                    if links > LINKS_MAX_COUNT {
                        let message = format!("'{}' leads through too many symbolic links", shorten(path));
                        return Err(Error::new(Code::BuildContextInvalid, message));
                    }
                    if target.starts_with('/') {
                        return Err(outside(path));
                    }
                    place.pop();
                    left.extend(target.split('/').rev().map(str::to_owned));
                }
                Some(Entry::File { .. }) if !left.is_empty() => return Ok(None),
                Some(Entry::File { .. } | Entry::Directory { .. }) => {}
            }
        }
        Ok(Some(place.join("/")))
    }

    /// The path of the link that a path in clean form names, if it names a link. Links on the way to it are followed,
    /// the link itself is not.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn link(&self, path: &str, budget: &Budget) -> Result<Option<String>> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(directory) = self.resolve(directory, budget)? else { return Ok(None) };
        let here = if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        Ok(matches!(self.entries.get(&here), Some(Entry::Link { .. })).then_some(here))
    }

    /// Paths below a directory, in order; of everything for the empty path.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let length = prefix.len();
        self.entries
            .range(prefix.clone()..)
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(move |(path, entry)| (&path[length..], entry))
    }
}

fn outside(path: &str) -> Error {
    Error::new(
        Code::BuildContextInvalid,
        format!("'{}' is a symbolic link that leads out of the context", shorten(path)),
    )
    .hint("copy what it points to into the context")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside() {
        let link = |target: &str| Entry::Link { target: target.to_owned() };
        let entries = [
            ("a", Entry::Directory { mode: 0o755 }),
            ("a/f", Entry::File { mode: 0o644, size: 1, digest: [0; 32] }),
            ("l", link("a")),
            ("a/up", link("../l/f")),
            ("out", link("../x")),
            ("abs", link("/etc/passwd")),
            ("c1", link("c2")),
            ("c2", link("c1")),
            ("a.b", Entry::Directory { mode: 0o755 }),
        ];
        let index = ContextIndex {
            entries: entries.into_iter().map(|(path, entry)| (path.to_owned(), entry)).collect(),
        };
        let budget = Budget::default();
        let found = |path: &str| index.resolve(path, &budget).unwrap();
        assert_eq!(found("l/f").as_deref(), Some("a/f"));
        assert_eq!(found("a/up").as_deref(), Some("a/f"));
        assert_eq!(found("").as_deref(), Some(""));
        assert_eq!((found("a/g"), found("a/f/g")), (None, None));
        for bad in ["out", "abs", "c1"] {
            assert_eq!(index.resolve(bad, &budget).unwrap_err().code, Code::BuildContextInvalid, "{bad}");
        }
        // Links are given as they are, even if they lead outside; links on the way to them are followed.
        for (path, link) in
            [("abs", Some("abs")), ("l/up", Some("a/up")), ("c1", Some("c1")), ("l/f", None), ("n", None)]
        {
            assert_eq!(index.link(path, &budget).unwrap().as_deref(), link, "{path}");
        }
        assert_eq!(index.link("out/x", &budget).unwrap_err().code, Code::BuildContextInvalid);
        assert_eq!(index.below("a").map(|(path, _)| path).collect::<Vec<_>>(), ["f", "up"]);
    }
}
