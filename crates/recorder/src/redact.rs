//! Takes words that look like a credential out of a command line.
//!
//! Values of the vault never reach a command line. Secrets that callers write there themselves are the callers' own;
//! this keeps the usual shapes out of the journal: passwords in URLs, values of options and variables that are called a
//! secret, the word after `Bearer`, and tokens whose prefix says what they are. It knows shapes, not secrets: do not
//! rely on it.

/// Stands in the place of a credential.
const HIDDEN: &str = "****";

/// Tokens that say what they are.
const PREFIXES: [&str; 16] = [
    "sk-",
    "sk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "hf_",
    "npm_",
    "lsv2_",
];
/// Fewer characters after a prefix are no token.
const TOKEN_MIN_CHARS: usize = 8;
/// An option or variable whose name ends so has a value that must not be read in the journal.
const NAMES: [&str; 9] =
    ["password", "passwd", "secret", "token", "apikey", "api_key", "api-key", "credential", "private_key"];
/// What stands between the name of a header and a credential.
const SCHEMES: [&str; 4] = ["bearer", "basic", "token", "apikey"];

/// The text without what looks like a credential, and whether the next argument is one. `whole`: this one is.
pub(crate) fn redact(argument: &str, whole: bool) -> (String, bool) {
    if whole && !argument.starts_with('-') {
        return (HIDDEN.to_owned(), false);
    }
    let mut out = String::with_capacity(argument.len());
    let mut hide_next = false;
    let mut rest = argument;
    while !rest.is_empty() {
        let separator = rest.find(is_separator).unwrap_or(rest.len());
        let (word, after) = rest.split_at(separator);
        if hide_next && SCHEMES.contains(&word.to_ascii_lowercase().as_str()) {
            out.push_str(word);
        } else if hide_next && !word.is_empty() {
            out.push_str(HIDDEN);
            hide_next = false;
        } else {
            let (shown, hide) = redact_word(word);
            out.push_str(&shown);
            hide_next |= hide;
        }
        let end = after.find(|c: char| !is_separator(c)).unwrap_or(after.len());
        out.push_str(&after[..end]);
        rest = &after[end..];
    }
    (out, hide_next)
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\'' | '"' | ',' | ';' | '(' | ')' | '{' | '}')
}

/// A word, and whether what follows it is a credential.
fn redact_word(word: &str) -> (String, bool) {
    if let Some(shown) = without_password(word) {
        return (shown, false);
    }
    if let Some((name, value)) = word.split_once(['=', ':'])
        && is_secret_name(name)
    {
        let sign = &word[name.len()..=name.len()];
        let shown = if value.is_empty() { word.to_owned() } else { format!("{name}{sign}{HIDDEN}") };
        return (shown, value.is_empty());
    }
    let bare = word.split_once('=').map_or(word, |(_, value)| value);
    if PREFIXES
        .iter()
        .any(|prefix| bare.strip_prefix(prefix).is_some_and(|token| token.len() >= TOKEN_MIN_CHARS))
    {
        return (word.replace(bare, HIDDEN), false);
    }
    let lower = word.to_ascii_lowercase();
    let option = lower.starts_with('-') && is_secret_name(&lower);
    (word.to_owned(), option || lower == "bearer")
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // A path or an address is no name.
    !name.contains(['/', '.'])
        && (NAMES.iter().any(|known| name.ends_with(known)) || name.ends_with("authorization"))
}

/// `scheme://user:****@host`, if the word has a password there.
fn without_password(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, _host) = authority.rsplit_once('@')?;
    let host_and_rest = &rest[user.len()..];
    let name = user.split_once(':').map(|(name, _)| name);
    // Without a name the whole is often a token.
    Some(match name {
        Some(name) => format!("{scheme}://{name}:{HIDDEN}{host_and_rest}"),
        None => format!("{scheme}://{HIDDEN}{host_and_rest}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(argv: &[&str]) -> String {
        let mut hide = false;
        let mut out = Vec::new();
        for argument in argv {
            let (shown, next) = redact(argument, hide);
            hide = next;
            out.push(shown);
        }
        out.join(" ")
    }

    #[test]
    fn what_looks_like_a_credential_is_hidden() {
        for (argv, shown) in [
            (&["curl", "-H", "Authorization: Bearer abc.def"][..], "curl -H Authorization: Bearer ****"),
            (&["git", "clone", "https://me:hunter2@host/x"], "git clone https://me:****@host/x"),
            (&["git", "clone", "https://tok3n@host/x"], "git clone https://****@host/x"),
            (&["x", "--password", "hunter2", "y"], "x --password **** y"),
            (&["x", "--api-key=hunter2"], "x --api-key=****"),
            (&["env", "GITHUB_TOKEN=hunter2", "make"], "env GITHUB_TOKEN=**** make"),
            (&["sh", "-c", "export DB_PASSWORD='hunter2'; run"], "sh -c export DB_PASSWORD='****'; run"),
            (&["echo", "sk-abcdefghijkl"], "echo ****"),
            (&["echo", "KEY=ghp_abcdefghijkl"], "echo KEY=****"),
        ] {
            let redacted = all(argv);
            assert_eq!(redacted, shown);
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for plain in [
            "ls -la /tmp",
            "python -c print(1)",
            "make -j2 CC=gcc",
            "tokenize a b",
            "curl https://host/x?y=z",
        ] {
            assert_eq!(redact(plain, false), (plain.to_owned(), false));
        }
    }
}
