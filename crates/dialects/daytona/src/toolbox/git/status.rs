//! The state of a repository.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Input, within};
use crate::error::Result;
use crate::request::{Json, Query};
use crate::who::Inside;

#[derive(Deserialize)]
pub(super) struct At {
    path: String,
}

/// The branch, how far it is from the branch that it follows, and the changed files.
pub(super) async fn status(inside: Inside, Query(at): Query<At>) -> Result<Json<Value>> {
    let arguments = ["status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z"];
    Ok(Json(read(&within(&inside, &at.path, Input::None, &arguments).await?)))
}

/// A letter of git's in the protocol's words.
fn word(letter: Option<char>) -> &'static str {
    match letter {
        Some('M' | 'T') => "Modified",
        Some('A') => "Added",
        Some('D') => "Deleted",
        Some('R') => "Renamed",
        Some('C') => "Copied",
        Some('U') => "Updated but unmerged",
        Some('?') => "Untracked",
        _ => "Unmodified",
    }
}

fn file(name: &str, letters: &str, extra: &str) -> Value {
    let mut letters = letters.chars();
    json!({"name": name, "staging": word(letters.next()), "worktree": word(letters.next()), "extra": extra})
}

/// Reads the output of `status --porcelain=v2 --branch -z`.
fn read(said: &str) -> Value {
    let (mut branch, mut upstream, mut ahead, mut behind) = ("", None, 0_u64, 0_u64);
    let mut files = Vec::new();
    let mut records = said.split('\0');
    while let Some(record) = records.next() {
        if let Some(rest) = record.strip_prefix("# branch.head ") {
            branch = rest;
        } else if let Some(rest) = record.strip_prefix("# branch.upstream ") {
            upstream = Some(rest);
        } else if let Some(rest) = record.strip_prefix("# branch.ab ") {
            let mut numbers =
                rest.split(' ').map(|number| number.get(1..).and_then(|text| text.parse().ok()));
            ahead = numbers.next().flatten().unwrap_or_default();
            behind = numbers.next().flatten().unwrap_or_default();
        } else if let Some(name) = record.strip_prefix("? ") {
            files.push(file(name, "??", ""));
        } else if let Some(rest) = record.strip_prefix("1 ") {
            files.extend(described(rest, 8).map(|(letters, name)| file(name, letters, "")));
        } else if let Some(rest) = record.strip_prefix("u ") {
            files.extend(described(rest, 10).map(|(_, name)| file(name, "UU", "")));
        } else if let Some(rest) = record.strip_prefix("2 ") {
            let old = records.next().unwrap_or_default();
            files.extend(described(rest, 9).map(|(letters, name)| file(name, letters, old)));
        }
    }
    let detached = branch == "(detached)";
    json!({
        "currentBranch": if detached { "HEAD" } else { branch },
        "fileStatus": files,
        "ahead": ahead,
        "behind": behind,
        "branchPublished": upstream.is_some(),
        "detached": detached,
        "upstream": upstream.unwrap_or_default(),
    })
}

/// Letters and name of a record whose name is the field with this number.
fn described(rest: &str, fields: usize) -> Option<(&str, &str)> {
    let letters = rest.split(' ').next()?;
    rest.splitn(fields, ' ').nth(fields - 1).map(|name| (letters, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_git_says_it() {
        let said = "# branch.oid 1\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +2 -1\0\
            1 .M N... 100644 100644 100644 a a a b.txt\0\
            2 R. N... 100644 100644 100644 a a R100 new\0old\0\
            u UU N... 1 1 1 1 a a a both\0? un tracked\0";
        let status = read(said);
        assert_eq!(
            (&status["currentBranch"], &status["ahead"], &status["behind"]),
            (&"main".into(), &2.into(), &1.into())
        );
        let files = status["fileStatus"].as_array().unwrap();
        assert_eq!(
            files[0],
            json!({"name": "a b.txt", "staging": "Unmodified", "worktree": "Modified", "extra": ""})
        );
        assert_eq!(
            files[1],
            json!({"name": "new", "staging": "Renamed", "worktree": "Unmodified", "extra": "old"})
        );
        assert_eq!(files[2]["staging"], "Updated but unmerged");
        assert_eq!(
            files[3],
            json!({"name": "un tracked", "staging": "Untracked", "worktree": "Untracked", "extra": ""})
        );
        assert_eq!(read("# branch.head (detached)\0")["detached"], true);
    }
}
