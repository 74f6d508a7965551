//! Finds the error for a failed git in git's own texts.

use http::StatusCode;

use crate::error::{Failure, Source};

/// Most characters of git's text that a message repeats.
const TOLD_MAX_CHARS: usize = 2000;

/// Texts of git, in the order in which they are searched, with their status and code.
const MEANINGS: [(&str, u16, &str); 25] = [
    ("authentication failed", 401, "GIT_AUTH_FAILED"),
    ("could not read username", 401, "GIT_AUTH_FAILED"),
    ("could not read password", 401, "GIT_AUTH_FAILED"),
    ("permission denied (publickey", 401, "GIT_AUTH_FAILED"),
    ("[remote rejected]", 422, "GIT_REMOTE_REJECTED"),
    ("[rejected]", 409, "GIT_PUSH_REJECTED"),
    ("merge conflict", 409, "GIT_MERGE_CONFLICT"),
    ("you have unmerged paths", 409, "GIT_MERGE_CONFLICT"),
    ("unmerged files", 409, "GIT_MERGE_CONFLICT"),
    ("would be overwritten by", 409, "GIT_DIRTY_WORKTREE"),
    ("uncommitted changes", 409, "GIT_DIRTY_WORKTREE"),
    ("a branch named", 409, "GIT_BRANCH_EXISTS"),
    ("remote branch", 404, "GIT_BRANCH_NOT_FOUND"),
    ("couldn't find remote ref", 404, "GIT_BRANCH_NOT_FOUND"),
    ("did not match any file", 404, "GIT_BRANCH_NOT_FOUND"),
    ("invalid reference", 404, "GIT_BRANCH_NOT_FOUND"),
    ("not found.\nfatal: repository", 404, "GIT_REPO_NOT_FOUND"),
    ("not a git repository", 404, "GIT_REPO_NOT_FOUND"),
    ("does not appear to be a git repository", 404, "GIT_REPO_NOT_FOUND"),
    ("cannot change to", 404, "GIT_REPO_NOT_FOUND"),
    ("repository not found", 404, "GIT_REPO_NOT_FOUND"),
    ("does not exist", 404, "GIT_REPO_NOT_FOUND"),
    ("unable to access", 502, "GIT_TRANSPORT_FAILED"),
    ("could not resolve host", 502, "GIT_TRANSPORT_FAILED"),
    ("could not read from remote repository", 502, "GIT_TRANSPORT_FAILED"),
];

/// The error for a git that ended with this code and wrote this text.
pub(super) fn of(code: i32, said: &str) -> Failure {
    let told: String = said.trim().chars().take(TOLD_MAX_CHARS).collect();
    let lower = said.to_lowercase();
    if code == 127 {
        return Failure::internal(told).from(Source::Daemon);
    }
    let is = |text: &str| lower.contains(text);
    // Git has more than one text for a missing branch.
    if is("branch '") && is("not found") {
        return Failure::new(StatusCode::NOT_FOUND, "GIT_BRANCH_NOT_FOUND", told).from(Source::Daemon);
    }
    if is("repository '") && is("not found") {
        return Failure::new(StatusCode::NOT_FOUND, "GIT_REPO_NOT_FOUND", told).from(Source::Daemon);
    }
    let found = MEANINGS.iter().find(|(text, ..)| is(text));
    let (status, code) = found.map_or((400, "BAD_REQUEST"), |(_, status, code)| (*status, *code));
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    Failure::new(status, code, told).from(Source::Daemon)
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_git_says_it() {
        let of = |said: &str| super::of(128, said).code;
        assert_eq!(of("fatal: Authentication failed for 'http://x/'"), "GIT_AUTH_FAILED");
        assert_eq!(
            of("fatal: could not read Username for 'http://x': terminal prompts disabled"),
            "GIT_AUTH_FAILED"
        );
        assert_eq!(
            of("fatal: not a git repository (or any of the parent directories): .git"),
            "GIT_REPO_NOT_FOUND"
        );
        assert_eq!(of("fatal: repository 'http://x/y/' not found"), "GIT_REPO_NOT_FOUND");
        assert_eq!(of("fatal: Remote branch none not found in upstream origin"), "GIT_BRANCH_NOT_FOUND");
        assert_eq!(of("error: pathspec 'x' did not match any file(s) known to git"), "GIT_BRANCH_NOT_FOUND");
        assert_eq!(of("error: branch 'x' not found"), "GIT_BRANCH_NOT_FOUND");
        assert_eq!(of("fatal: a branch named 'x' already exists"), "GIT_BRANCH_EXISTS");
        assert_eq!(of(" ! [rejected]  main -> main (fetch first)"), "GIT_PUSH_REJECTED");
        assert_eq!(of(" ! [remote rejected] main -> main (hook declined)"), "GIT_REMOTE_REJECTED");
        assert_eq!(
            of("fatal: unable to access 'http://x/': Could not resolve host: x"),
            "GIT_TRANSPORT_FAILED"
        );
        assert_eq!(of("something else"), "BAD_REQUEST");
        assert_eq!(super::of(127, "no git").code, "INTERNAL_SERVER_ERROR");
    }
}
