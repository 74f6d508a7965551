//! What tests of gVisor need of the host.

use std::path::PathBuf;
use std::process::Command;

/// gVisor's program, as Debian installs it.
const RUNSC: &str = "/usr/bin/runsc";

/// `runsc`; or why there can be no sandboxes in gVisor here, which has then been printed.
#[must_use]
#[expect(clippy::print_stderr, reason = "who runs the tests is to see that some did nothing")]
pub fn runsc() -> Option<PathBuf> {
    match Command::new(RUNSC).arg("--version").output() {
        Ok(output) if output.status.success() => Some(RUNSC.into()),
        Ok(_) => panic!("{RUNSC} is installed and does not start"),
        Err(error) => {
            eprintln!("SKIPPED, no gVisor: {RUNSC}: {error} (scripts/install-deps fetches it)");
            None
        }
    }
}
