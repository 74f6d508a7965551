//! The program: takes over what the driver handed it and runs the agent. See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let sandbox_id =
        std::env::var_os("ATOLL_SANDBOX_ID").and_then(|id| id.into_string().ok()).unwrap_or_default();
    match atoll_guest::agent::run(&sandbox_id) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no log in here; whoever started the agent may have kept its standard error.
            drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("atoll-guest: {error}\n").as_bytes(),
            ));
            ExitCode::FAILURE
        }
    }
}
