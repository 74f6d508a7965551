//! Programs of the host that tests of gVisor need.

use std::path::PathBuf;
use std::process::Command;

/// gVisor's program, as Debian installs it.
const RUNSC: &str = "/usr/bin/runsc";

/// `runsc`.
///
/// # Panics
/// When it is not there: a test of gVisor fails then, it does not skip.
#[must_use]
pub fn runsc() -> PathBuf {
    match Command::new(RUNSC).arg("--version").output() {
        Ok(output) if output.status.success() => RUNSC.into(),
        Ok(_) => panic!("{RUNSC} is installed and does not start"),
        Err(error) => panic!("no gVisor: {RUNSC}: {error} (scripts/install-deps fetches it)"),
    }
}
