//! The entries of a log that a client wants, and their order: for logs of sandboxes and of builds.

use std::collections::VecDeque;

use serde::Deserialize;

use crate::error::{Failure, Result};

/// Levels, the least first.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];
/// Longest text that a client may search for, characters.
const SEARCH_MAX_CHARS: usize = 256;

/// The client's query for entries.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    cursor: Option<u64>,
    limit: Option<i64>,
    direction: Option<String>,
    level: Option<String>,
    search: Option<String>,
}

/// The same, parsed.
#[derive(Debug)]
pub(crate) struct Selection {
    cursor: Option<u64>,
    limit: usize,
    forward: bool,
    /// Place of the least level among [`LEVELS`].
    least: usize,
    search: Option<String>,
}

/// Whether entries are at least of a level, by its name.
///
/// # Errors
/// 400 for a word that is no level.
pub(crate) fn least(level: Option<&str>) -> Result<usize> {
    let Some(level) = level.filter(|level| !level.is_empty()) else { return Ok(0) };
    let found = LEVELS.iter().position(|known| *known == level);
    found.ok_or_else(|| Failure::bad("level: must be debug, info, warn or error"))
}

/// The place of a level among all.
pub(crate) fn rank(level: &str) -> usize {
    LEVELS.iter().position(|known| *known == level).unwrap_or_default()
}

impl Wanted {
    /// # Errors
    /// 400 for values that are not valid.
    pub(crate) fn check(self, limit_max: usize) -> Result<Selection> {
        let forward = match self.direction.as_deref() {
            None | Some("" | "backward") => false,
            Some("forward") => true,
            Some(_) => return Err(Failure::bad("direction: must be forward or backward")),
        };
        let limit = match self.limit {
            None => limit_max,
            Some(limit) => {
                let fits = usize::try_from(limit).ok().filter(|limit| *limit <= limit_max);
                fits.ok_or_else(|| Failure::bad(format!("limit: must lie between 0 and {limit_max}")))?
            }
        };
        let search = self.search.filter(|text| !text.is_empty());
        if search.as_ref().is_some_and(|text| text.chars().count() > SEARCH_MAX_CHARS) {
            return Err(Failure::bad(format!("search: longer than {SEARCH_MAX_CHARS} characters")));
        }
        let least = least(self.level.as_deref())?;
        Ok(Selection { cursor: self.cursor, limit, forward, least, search })
    }
}

impl Selection {
    /// Whether the client wants an entry.
    pub(crate) fn takes(&self, at_ms: u64, level: &str, text: impl FnOnce() -> String) -> bool {
        let beyond = self.cursor.is_none_or(|at| if self.forward { at_ms >= at } else { at_ms <= at });
        beyond
            && rank(level) >= self.least
            && self.search.as_ref().is_none_or(|search| text().contains(search))
    }

    /// Keeps one more entry, the oldest first, as far as an answer has it.
    pub(crate) fn keep<T>(&self, kept: &mut VecDeque<T>, one: impl FnOnce() -> T) {
        if self.forward && kept.len() >= self.limit {
            return;
        }
        kept.push_back(one());
        if kept.len() > self.limit {
            kept.pop_front();
        }
    }

    /// The entries of one answer, in the order that the client asked for; `entries` are the oldest first.
    pub(crate) fn page<T>(&self, mut entries: Vec<T>) -> Vec<T> {
        if !self.forward {
            entries.reverse();
        }
        entries.truncate(self.limit);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Result<Selection> {
        serde_html_form::from_str::<Wanted>(query).unwrap().check(100)
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = format!("search={}", "x".repeat(257));
        for bad in ["direction=up", "level=loud", "limit=-1", "limit=101", &long] {
            assert!(of(bad).is_err(), "{bad}");
        }
        for good in ["", "direction=&level=&search=", "limit=0", "direction=backward&level=warn&limit=100"] {
            assert!(of(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_newest_come_first_unless_asked_otherwise() {
        assert_eq!(of("limit=2").unwrap().page(vec![1, 2, 3]), [3, 2]);
        assert_eq!(of("direction=forward&limit=2").unwrap().page(vec![1, 2, 3]), [1, 2]);
        for (query, page) in
            [("limit=2", vec![3, 2]), ("direction=forward&limit=2", vec![1, 2]), ("limit=0", vec![])]
        {
            let (wanted, mut kept) = (of(query).unwrap(), VecDeque::new());
            (1..=3).for_each(|one| wanted.keep(&mut kept, || one));
            assert!(kept.len() <= 2, "{query}");
            let told: Vec<i32> = wanted.page(Vec::from(kept));
            assert_eq!(told, page, "{query}");
        }
        let later = of("direction=forward&cursor=5&level=warn&search=b").unwrap();
        let takes = |at, level, text: &str| later.takes(at, level, || text.to_owned());
        assert!(takes(5, "error", "abc"));
        assert!(!takes(4, "error", "abc") && !takes(5, "info", "abc") && !takes(5, "warn", "x"));
        assert!(
            of("cursor=5").unwrap().takes(5, "debug", String::new)
                && !of("cursor=5").unwrap().takes(6, "debug", String::new)
        );
    }
}
