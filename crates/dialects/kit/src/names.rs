//! Turns names that other products allow and the engine does not into names of the engine.

/// Characters of a name that are kept.
const KEPT_MAX_CHARS: usize = 40;
/// Hexadecimal digits that keep names apart whose kept characters are the same.
const DIGITS: usize = 12;

/// The engine's name for a thing that a client calls `name`: `name` itself where the engine allows it, else a name made
/// from it, which differs for every other `name`. `context` separates kinds of things (see [`blake3::derive_key`]),
/// `fallback` is used where no character of the name can be kept.
#[must_use]
pub fn label(name: &str, context: &str, fallback: &str) -> String {
    if atoll_core::spec::name("name", name).is_ok() {
        return name.to_owned();
    }
    let fits = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let kept: String = name.chars().map(fits).skip_while(|c| *c == '-').take(KEPT_MAX_CHARS).collect();
    let kept = kept.trim_matches('-');
    let hash = blake3::Hash::from_bytes(blake3::derive_key(context, name.as_bytes())).to_hex();
    format!("{}-{}", if kept.is_empty() { fallback } else { kept }, &hash.as_str()[..DIGITS])
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_name_gives_one() {
        let label = |name: &str| super::label(name, "atoll test", "thing");
        assert_eq!(label("my-env"), "my-env");
        for name in
            ["My Env", "", "é", "a/b:c", &"x".repeat(200), "-", "under_score", "adding-up__ZEiMnB3__env"]
        {
            let made = label(name);
            assert!(atoll_core::spec::name("name", &made).is_ok(), "{name}: {made}");
        }
        assert_ne!(label("My Env"), label("my env"));
    }
}
