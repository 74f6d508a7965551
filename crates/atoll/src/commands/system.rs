//! The server itself.

use atoll_client::Client;
use atoll_core::spec::Accelerator;

use crate::failure::Result;
use crate::output::{Printer, fields};

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
