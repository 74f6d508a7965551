//! The server itself.

use atoll_client::Client;
use atoll_core::spec::Accelerator;
use atoll_core::{Code, Error};

use crate::failure::{Failure, Result};
use crate::output::{Printer, fields};

/// Refuses what would fail half way for anybody but root, with an error of the system that names no way out.
pub(super) fn need_root(to_do: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::Plain(Error::new(Code::InvalidArgument, format!("only root can {to_do}")).hint("use sudo")))
}

/// `atoll info`
pub(super) async fn info(client: &Client, printer: Printer) -> Result<()> {
    let info = client.server_info().await?;
    printer.result(&info, || {
        fields([
            ("server", client.url().to_owned()),
            ("version", info.version.clone()),
            ("installation", info.installation.clone()),
            ("isolation", info.isolation.join(" ")),
            ("machines", info.accelerator.map_or("none", Accelerator::as_str).to_owned()),
            ("sandboxes", format!("{} of {}", info.sandboxes, info.sandboxes_max)),
        ])
    })
}

/// `atoll ca`
pub(super) async fn ca(client: &Client, printer: Printer) -> Result<()> {
    let pem = client.server_ca().await?;
    printer.result(&pem, || pem.trim_end().to_owned())?;
    printer.note(
        "\nKeep it in a file, say atoll-ca.pem. Clients trust it with SSL_CERT_FILE=atoll-ca.pem (Python, Go, curl, atoll) or \
         NODE_EXTRA_CA_CERTS=atoll-ca.pem (Node.js); all of this machine, if it is put into /usr/local/share/ca-certificates/ as \
         .crt and 'update-ca-certificates' is run",
    );
    Ok(())
}
