//! What sandboxes do on the network: `net show`, `net denied`.

use atoll_client::Client;
use atoll_core::network::Stage;

use crate::cli::NetCommand;
use crate::failure::Result;
use crate::output::{Printer, age, clean, table};
use crate::units::format_bytes;

/// `atoll net …`
pub(super) async fn net(client: &Client, printer: Printer, command: NetCommand) -> Result<()> {
    match command {
        NetCommand::Show { sandbox } => show(client, printer, &sandbox).await,
        NetCommand::Denied { sandbox } => denied(client, printer, &sandbox).await,
    }
}

async fn show(client: &Client, printer: Printer, sandbox: &str) -> Result<()> {
    let network = client.sandbox_network(sandbox).await?;
    let policy = client.get_sandbox(sandbox).await?.egress;
    printer.result(&network, || {
        let mut text = format!("internet: {}\n", policy.internet.as_str());
        for (index, rule) in policy.rules.iter().enumerate() {
            text.push_str(&format_rule(index, &rule.to_string()));
        }
        if !network.connections.is_empty() {
            let rows = network.connections.iter().map(|open| {
                let to = open.name.clone().unwrap_or_else(|| open.address.clone());
                [
                    open.protocol.clone(),
                    format!("{to}:{}", open.port),
                    open.address.clone(),
                    age(open.opened_at_ms),
                    format_bytes(open.sent_bytes),
                    format_bytes(open.received_bytes),
                ]
            });
            text.push('\n');
            text.push_str(&table(["OPEN", "TO", "ADDRESS", "SINCE", "SENT", "RECEIVED"], rows));
            text.push('\n');
        }
        let rows = network.totals.iter().map(|total| {
            [
                total.destination.clone(),
                total.connections.to_string(),
                format_bytes(total.sent_bytes),
                format_bytes(total.received_bytes),
            ]
        });
        text.push('\n');
        text.push_str(&table(["DESTINATION", "CONNECTIONS", "SENT", "RECEIVED"], rows));
        text
    })
}

fn format_rule(index: usize, rule: &str) -> String {
    format!("rule {}: {rule}\n", index + 1)
}

async fn denied(client: &Client, printer: Printer, sandbox: &str) -> Result<()> {
    let network = client.sandbox_network(sandbox).await?;
    printer.result(&network.denials, || {
        let rows = network.denials.iter().map(|denial| {
            let stage = match denial.stage {
                Stage::Dns => "lookup",
                Stage::Connect => "connection",
                Stage::Request => "request",
                Stage::Limit => "limit",
            };
            // Names and paths were chosen inside the sandbox.
            let (what, why) = (clean(&denial.what), clean(&denial.why));
            let ask = clean(denial.ask.as_deref().unwrap_or("-"));
            let last = format!("{} ago", age(denial.last_at_ms));
            [last, denial.count.to_string(), stage.to_owned(), what, why, ask]
        });
        table(["LAST", "TIMES", "AT", "WHAT", "WHY", "WOULD ALLOW IT"], rows)
    })
}
