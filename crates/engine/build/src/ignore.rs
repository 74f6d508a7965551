//! `.dockerignore`: the paths of the context that are left out.
//!
//! As in Docker: patterns are relative to the root of the context, one that matches a directory covers everything
//! below it, `!` brings back, and the last that matches decides.

use crate::budget::Budget;
use crate::copy::clean;
use crate::glob;

/// Patterns that leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    keep: bool,
    pattern: String,
}

impl Ignore {
    /// Reads the text of a file. A line that makes no sense matches nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rules = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let line = line.trim();
            let (keep, pattern) = match line.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line),
            };
            let pattern = clean(pattern)?;
            (!pattern.is_empty()).then_some(Rule { keep, pattern })
        });
        Self { rules: rules.collect() }
    }

    /// Whether a path of the context is left out. It is relative, with `/` between its parts. It takes as long as it takes:
    /// for whoever reads files of their own.
    #[must_use]
    pub fn ignores(&self, path: &str) -> bool {
        self.ignores_within(path, &Budget::new(u64::MAX, usize::MAX))
    }

    /// The same, as far as the budget goes: when it is spent, the answer means nothing.
    pub(crate) fn ignores_within(&self, path: &str, budget: &Budget) -> bool {
        let mut ignored = false;
        for rule in &self.rules {
            if budget.is_spent() {
                return true;
            }
            budget.work(1);
            // Only a rule that would change the result needs to be matched.
            if rule.keep == ignored && covers(&rule.pattern, path, budget) {
                ignored = !rule.keep;
            }
        }
        ignored
    }

    /// Whether nothing below a directory that is left out can be brought back: it need not be looked into.
    #[must_use]
    pub fn ignores_all_below(&self, directory: &str) -> bool {
        self.ignores(directory) && !self.rules.iter().any(|rule| rule.keep)
    }
}

/// Whether a pattern matches a path or a directory above it.
fn covers(pattern: &str, path: &str, budget: &Budget) -> bool {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.into_iter().any(|end| glob::matches(pattern, &path[..end], true, budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_match_decides() {
        let ignore =
            Ignore::parse("# comment\n*.log\n!keep.log\n/build\n**/node_modules\nsrc/*.tmp\n./x/../y\n\n");
        for path in ["a.log", "build", "build/a/b", "node_modules/x", "a/b/node_modules/c", "src/a.tmp", "y"]
        {
            assert!(ignore.ignores(path), "{path}");
        }
        for path in ["keep.log", "a/b.log", "src/build", "src/a/b.tmp", "x", "# comment"] {
            assert!(!ignore.ignores(path), "{path}");
        }
        let all = Ignore::parse("*\n!src\n!README.md\nsrc/secret");
        assert!(all.ignores("a") && !all.ignores("src/main.rs") && all.ignores("src/secret/key"));
        assert!(!all.ignores("README.md"));
        assert!(!all.ignores_all_below("docs") && Ignore::parse("docs").ignores_all_below("docs"));
    }
}
