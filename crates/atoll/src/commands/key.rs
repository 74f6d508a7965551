//! API keys.

use atoll_api::{CreateKey, Key, KeyFormat};
use atoll_client::Client;

use crate::cli::KeyCommand;
use crate::failure::Result;
use crate::output::{Printer, age, table, until};

/// `atoll key …`
pub(super) async fn key(client: &Client, printer: Printer, command: KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Create { scope, ttl, format, name } => {
            let created = client.create_key(&CreateKey { name, scope, ttl_ms: ttl, format }).await?;
            printer.note(&format!("key {}: its secret is shown only now", created.key.id));
            if let Some(hint) = hint(format) {
                printer.note(hint);
            }
            printer.result(&created, || created.secret.reveal().to_owned())
        }
        KeyCommand::Ls => {
            let list = client.list_keys().await?;
            printer.result(&list, || {
                table(["ID", "NAME", "SCOPE", "AGE", "ENDS", "LAST USED"], list.items.iter().map(row))
            })
        }
        KeyCommand::Rm { keys } => {
            for key in &keys {
                client.delete_key(key).await?;
            }
            printer.result(&serde_json::json!({ "removed": keys }), String::new)
        }
    }
}

/// Where a vendor's clients look for their key.
const fn hint(format: KeyFormat) -> Option<&'static str> {
    match format {
        KeyFormat::Atoll => None,
        KeyFormat::E2b => Some("put it into E2B_API_KEY"),
        KeyFormat::Daytona => Some("put it into DAYTONA_API_KEY"),
        KeyFormat::Runloop => Some("put it into RUNLOOP_API_KEY"),
        KeyFormat::Modal => Some(
            "put what stands before the colon into MODAL_TOKEN_ID, and what follows into MODAL_TOKEN_SECRET",
        ),
    }
}

fn row(key: &Key) -> [String; 6] {
    [
        key.id.clone(),
        key.name.clone(),
        key.scope.as_str().to_owned(),
        age(key.created_at_ms),
        until(key.expires_at_ms),
        key.last_used_at_ms.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(at))),
    ]
}
