//! Ports, and links to ports and files.

use std::process::{Command, Stdio};

use atoll_api::{Access, AccessCreated, AccessFile, CreateAccess, Port};
use atoll_client::Client;

use crate::cli::{LinkArgs, PortCommand, PortUrlArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table, until};

/// Programs that open an address in the user's browser.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// `atoll port …`
pub(super) async fn port(client: &Client, printer: Printer, command: PortCommand) -> Result<()> {
    match command {
        PortCommand::Ls { sandbox } => {
            let list = client.sandbox_ports(&sandbox).await?;
            printer.result(&list, || table(["PORT", "ADDRESS", "OPEN TO"], list.items.iter().map(row)))
        }
        PortCommand::Url(args) => url(client, printer, args).await,
        PortCommand::Open { ttl, sandbox, port } => {
            let create = CreateAccess {
                port,
                all_ports: port.is_none(),
                name: Some("opened in a browser".to_owned()),
                ttl_ms: Some(ttl),
                ..CreateAccess::default()
            };
            let created = client.create_access(&sandbox, &create).await?;
            if !printer.is_json() && open(created.link.reveal()) {
                printer.note(&format!("opened {} in a browser", created.access.url));
                return Ok(());
            }
            show(printer, &created)
        }
        PortCommand::Publish { ttl, sandbox, port } => {
            let create =
                CreateAccess { port: Some(port), public: true, ttl_ms: ttl, ..CreateAccess::default() };
            let created = client.create_access(&sandbox, &create).await?;
            printer.note(&format!(
                "everybody who reaches this server may use it; 'atoll port revoke {sandbox} {}' takes it back",
                created.access.id
            ));
            show(printer, &created)
        }
        PortCommand::Access { sandbox } => {
            let list = client.list_accesses(&sandbox).await?;
            printer.result(&list, || {
                table(["ID", "TO", "OPEN TO", "NAME", "AGE", "ENDS"], list.items.iter().map(access_row))
            })
        }
        PortCommand::Revoke { sandbox, accesses } => {
            for access in accesses {
                client.revoke_access(&sandbox, &access).await?;
            }
            Ok(())
        }
    }
}

async fn url(client: &Client, printer: Printer, args: PortUrlArgs) -> Result<()> {
    let PortUrlArgs { ttl, name, sandbox, port } = args;
    let create = CreateAccess { port: Some(port), name, ttl_ms: ttl, ..CreateAccess::default() };
    let created = client.create_access(&sandbox, &create).await?;
    printer.note("whoever has this link may use the port");
    show(printer, &created)
}

/// `atoll link …`
pub(super) async fn link(client: &Client, printer: Printer, args: LinkArgs) -> Result<()> {
    let (sandbox, path) = args
        .file
        .split_once(':')
        .filter(|(sandbox, path)| !sandbox.is_empty() && path.starts_with('/'))
        .ok_or_else(|| Failure::Usage(format!("'{}' is not SANDBOX:/PATH", args.file)))?;
    let file = AccessFile { path: path.to_owned(), media_type: args.media_type, inline: args.inline };
    let create = CreateAccess { file: Some(file), ttl_ms: args.ttl, ..CreateAccess::default() };
    let created = client.create_access(sandbox, &create).await?;
    printer.note("whoever has this link may read the file");
    show(printer, &created)
}

fn show(printer: Printer, created: &AccessCreated) -> Result<()> {
    printer.result(created, || created.link.reveal().to_owned())
}

/// Opens an address in a browser, if there is one.
pub(super) fn open(url: &str) -> bool {
    OPENERS.iter().any(|opener| {
        let mut command = Command::new(opener);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

fn row(port: &Port) -> [String; 3] {
    [port.port.to_string(), port.url.clone(), open_to(port.public).to_owned()]
}

fn open_to(public: bool) -> &'static str {
    if public { "everybody" } else { "links and keys" }
}

fn access_row(access: &Access) -> [String; 6] {
    let to = match (access.port, &access.file) {
        (Some(port), _) => format!("port {port}"),
        (None, Some(file)) => file.path.clone(),
        (None, None) => "all ports".to_owned(),
    };
    let whom = if access.public { "everybody" } else { "who has the link" };
    [
        access.id.clone(),
        to,
        whom.to_owned(),
        access.name.clone().unwrap_or_default(),
        age(access.created_at_ms),
        until(access.expires_at_ms),
    ]
}
