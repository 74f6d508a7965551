//! Credentials for image registries.

use atoll_api::RegistryCredentials;
use atoll_client::Client;

use crate::cli::RegistryCommand;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::terminal;

/// `atoll registry …`
pub(super) async fn registry(client: &Client, printer: Printer, command: RegistryCommand) -> Result<()> {
    match command {
        RegistryCommand::Login { username, password_stdin, host } => {
            if !password_stdin && !terminal::can_ask() {
                return Err(Failure::Usage("nobody can be asked: add --password-stdin".to_owned()));
            }
            let password = terminal::read_secret("Password: ")?;
            client.set_registry(&host, &RegistryCredentials { username, password }).await?;
            printer.note(&format!("stored credentials for {host}"));
            printer.result(&serde_json::json!({ "host": host, "stored": true }), String::new)
        }
        RegistryCommand::Ls => {
            let list = client.list_registries().await?;
            printer.result(&list, || {
                let rows = list.items.iter().map(|entry| {
                    [entry.host.clone(), entry.username.clone(), format!("{} ago", age(entry.updated_at_ms))]
                });
                table(["HOST", "USER", "STORED"], rows)
            })
        }
        RegistryCommand::Logout { host } => {
            client.delete_registry(&host).await?;
            printer.result(&serde_json::json!({ "host": host, "stored": false }), String::new)
        }
    }
}
