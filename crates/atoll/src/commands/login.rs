//! `login` and `logout`: which server this user's commands talk to.

use std::time::Duration;

use atoll_api::{DeviceLoginState, PollDeviceLogin};
use atoll_client::Client;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};

use crate::cli::{GlobalArgs, LoginArgs};
use crate::config;
use crate::failure::{Failure, Result};
use crate::output::{Printer, until};
use crate::terminal;

/// Where a server listens that was told nothing.
const USUAL_URL: &str = "http://127.0.0.1:4600";

/// How much longer to wait between two questions when the issuer wants it: RFC 8628, section 3.5.
const SLOWER_MS: u64 = 5000;

/// `atoll login`: nothing is written before the server has taken the key.
pub(super) async fn login(args: &GlobalArgs, printer: Printer, login: LoginArgs) -> Result<()> {
    let settings = config::load(args)?;
    let url = login.server.or(settings.url).unwrap_or_else(|| USUAL_URL.to_owned());
    if !url.contains("://") {
        // As with docker, whose `login` is that to a registry.
        let error = Error::new(
            Code::InvalidArgument,
            format!("'{url}' is not the address of a server: it begins with http:// or https://"),
        );
        return Err(Failure::Plain(
            error.hint(format!("for a registry of images: 'atoll registry login -u USER {url}'")),
        ));
    }
    // A key in the file is of the server before.
    let key = match config::named_key(args)? {
        _ if login.oidc => person(&url, printer).await?,
        Some(key) => key,
        None => terminal::read_secret(&format!("API key for {url}: "))?,
    };
    let client = Client::new(&url, &key)?;
    let info = client.server_info().await?;
    let path = config::keep_login(args, Some((client.url(), &key)))?;
    printer.note(&format!("{} (atoll {}) is in {}", client.url(), info.version, path.display()));
    printer.result(&info, String::new)
}

/// Logs a person in, somewhere where there is a browser.
async fn person(url: &str, printer: Printer) -> Result<Secret> {
    let client = Client::new(url, &Secret::new(""))?;
    let begun = client.begin_device_login().await?;
    printer.note(&format!("open {} in a browser, and type {}", begun.verification_uri, begun.user_code));
    if let Some(address) = &begun.verification_uri_complete {
        printer.note(&format!("or open {address} and compare the code"));
    }
    let (mut wait_ms, poll) = (begun.interval_ms, PollDeviceLogin { login: begun.login });
    loop {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let polled = client.poll_device_login(&poll).await?;
        match (polled.state, polled.secret) {
            (DeviceLoginState::Pending, _) => {}
            (DeviceLoginState::SlowDown, _) => wait_ms += SLOWER_MS,
            (DeviceLoginState::Done, Some(secret)) => {
                let name = polled.name.unwrap_or_default();
                let ends = until(polled.expires_at_ms);
                printer.note(&format!("logged in as {name}; that ends {ends}, then log in again"));
                return Ok(secret);
            }
            (DeviceLoginState::Done, None) => {
                return Err(Failure::plain(Code::Internal, "the server gave no secret"));
            }
        }
    }
}

/// `atoll logout`: a person's login ends; a key goes on working.
pub(super) async fn logout(args: &GlobalArgs, printer: Printer) -> Result<()> {
    let settings = config::load_file(args)?;
    let path = config::keep_login(args, None)?;
    let ended = match (settings.url, settings.api_key) {
        (Some(url), Some(key)) => Client::new(&url, &key)?.end_login().await.is_ok(),
        _ => false,
    };
    let then = if ended { "the login has ended" } else { "the key goes on working: 'atoll key rm' ends it" };
    printer.note(&format!("no server is in {} any more; {then}", path.display()));
    printer.done(&serde_json::json!({ "file": path, "login_ended": ended }))
}
