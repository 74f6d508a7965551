//! `login` and `logout`: which server this user's commands talk to.

use atoll_client::Client;

use crate::cli::{GlobalArgs, LoginArgs};
use crate::config;
use crate::failure::Result;
use crate::output::Printer;
use crate::terminal;

/// Where a server listens that was told nothing.
const USUAL_URL: &str = "http://127.0.0.1:4600";

/// `atoll login`: nothing is written before the server has taken the key.
pub(super) async fn login(args: &GlobalArgs, printer: Printer, login: LoginArgs) -> Result<()> {
    let settings = config::load(args)?;
    let url = login.server.or(settings.url).unwrap_or_else(|| USUAL_URL.to_owned());
    // A key in the file is of the server before.
    let key = match config::named_key(args)? {
        Some(key) => key,
        None => terminal::read_secret(&format!("API key for {url}: "))?,
    };
    let client = Client::new(&url, &key)?;
    let info = client.server_info().await?;
    let path = config::keep_login(args, Some((client.url(), &key)))?;
    printer.note(&format!("{} (atoll {}) is in {}", client.url(), info.version, path.display()));
    printer.result(&info, String::new)
}

/// `atoll logout`
pub(super) fn logout(args: &GlobalArgs, printer: Printer) -> Result<()> {
    let path = config::keep_login(args, None)?;
    printer.note(&format!(
        "no server is in {} any more; the key goes on working: 'atoll key rm' ends it",
        path.display()
    ));
    Ok(())
}
