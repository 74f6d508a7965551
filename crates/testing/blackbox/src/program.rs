//! The program under test.
//!
//! Tests that use it belong to the package of the program, so `cargo test` and `cargo nextest` have built it, with the
//! features that everything else was built with, before the first of them starts.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The program, in the profile of the tests. Builds with debug assertions have fail points, see `ATOLL_FAILPOINTS`.
pub fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // target/<profile>/deps/<test>
        let test = std::env::current_exe().expect("the test's own path");
        let program = test.ancestors().nth(2).expect("a target directory").join("atoll");
        assert!(
            program.is_file(),
            "{} is not built: it is, for tests of the package atoll",
            program.display()
        );
        program
    })
}
