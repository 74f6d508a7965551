//! The program: takes over the descriptors that the driver handed it and runs the agent. See the library.

use std::path::PathBuf;
use std::process::ExitCode;

use atoll_guest_protocol::sentry::SOCKETS_VARIABLE;

fn main() -> ExitCode {
    let sandbox_id =
        std::env::var_os("ATOLL_SANDBOX_ID").and_then(|id| id.into_string().ok()).unwrap_or_default();
    let sockets = std::env::var_os(SOCKETS_VARIABLE).map(PathBuf::from);
    match atoll_guest::agent::run(&sandbox_id, sockets.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no log in here; the isolation driver that started the agent may have kept its standard error.
            drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("atoll-guest: {error}\n").as_bytes(),
            ));
            ExitCode::FAILURE
        }
    }
}
