//! Arbitrary Dockerfiles, as any client may send, found by coverage: `make fuzz`. Each runs shortly with the other
//! tests, too.

use bolero::check;

use crate::{Ignore, parse};

#[test]
fn dockerfiles() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match parse(text) {
            Ok(recipe) => assert!(!recipe.stages.is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

#[test]
fn what_is_ignored() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let ignore = Ignore::parse(text);
        for path in ["a", "src/main.rs", "node_modules/x/y/z.js"] {
            // A directory is passed over only if everything in it is.
            assert!(!ignore.ignores_all_below(path) || ignore.ignores(&format!("{path}/any")));
        }
    });
}
