//! The launcher by itself, for the tests of the driver.

fn main() -> std::process::ExitCode {
    let jail = std::env::args().next_back().unwrap_or_default();
    let launched = serde_json::from_str(&jail)
        .map_err(|error| error.to_string())
        .and_then(|jail| atoll_isolation_gvisor::launch::launch(&jail));
    match launched {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            drop(std::io::Write::write_all(&mut std::io::stderr(), error.as_bytes()));
            std::process::ExitCode::FAILURE
        }
    }
}
