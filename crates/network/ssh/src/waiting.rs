//! Channels of sessions whose command was not named yet.

use std::collections::BTreeMap;

use atoll_core::spec::TtySize;

use crate::forward::Ends;

/// Variables that a client may set for a command.
const ENV_MAX_COUNT: usize = 64;
/// Their names and values together, bytes.
const ENV_MAX_BYTES: usize = 64 << 10;

/// What the client has said so far of a session.
pub(crate) struct Waiting {
    pub(crate) ends: Ends,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) tty: Option<TtySize>,
}

impl Waiting {
    pub(crate) fn new(ends: Ends) -> Self {
        Self { ends, env: BTreeMap::new(), tty: None }
    }

    /// Sets a variable, if it is a sensible one and there is room for it; says whether it did.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> bool {
        set(&mut self.env, name, value)
    }
}

fn set(env: &mut BTreeMap<String, String>, name: &str, value: &str) -> bool {
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    let fits = env.len() < ENV_MAX_COUNT && bytes + name.len() + value.len() <= ENV_MAX_BYTES;
    let may = fits && is_plain(name) && !value.contains('\0');
    if may {
        env.insert(name.to_owned(), value.to_owned());
    }
    may
}

/// A name of a variable or terminal.
pub(crate) fn is_plain(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.+".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_few_and_short_together() {
        let mut env = BTreeMap::new();
        assert!(set(&mut env, "LANG", "C") && !set(&mut env, "A B", "C") && !set(&mut env, "NUL", "\0"));
        let half = "x".repeat(ENV_MAX_BYTES / 2);
        assert!(set(&mut env, "ONE", &half) && !set(&mut env, "TWO", &half));
        let count = (0..ENV_MAX_COUNT).take_while(|n| set(&mut env, &format!("V{n}"), "")).count();
        assert_eq!((count, env.len()), (ENV_MAX_COUNT - 2, ENV_MAX_COUNT));
    }
}
