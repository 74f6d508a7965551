//! `atoll dashboard`

use atoll_client::Client;

use super::port;
use crate::cli::DashboardArgs;
use crate::failure::Result;
use crate::output::Printer;

pub(super) async fn dashboard(client: &Client, printer: Printer, args: &DashboardArgs) -> Result<()> {
    let made = client.create_dashboard_link().await?;
    if args.open && !printer.is_json() && port::open(made.link.reveal()) {
        printer.note("opened the dashboard in a browser");
        return Ok(());
    }
    printer.note("open it within a minute; it works once");
    printer.result(&made, || made.link.reveal().to_owned())
}
