//! API keys.

use std::collections::BTreeMap;

use atoll_api::{CreateKey, Key, KeyFormat, KeyPerson};
use atoll_client::Client;

use crate::cli::KeyCommand;
use crate::failure::Result;
use crate::output::{Printer, age, now_ms, table, until};

/// `atoll key …`
pub(super) async fn key(client: &Client, printer: Printer, command: KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Create { scope, ttl, format, project, name } => {
            let create = CreateKey { name, scope, ttl_ms: ttl, format, project };
            let created = client.create_key(&create).await?;
            printer.note(&format!("key {}: its secret is shown only now", created.key.id));
            if let Some(hint) = hint(format) {
                printer.note(hint);
            }
            printer.result(&created, || created.secret.reveal().to_owned())
        }
        KeyCommand::Ls => {
            let list = client.list_keys().await?;
            let projects = Projects::of(client, &list.items).await?;
            printer.result(&list, || {
                let (people, keys): (Vec<_>, Vec<_>) =
                    list.items.iter().partition(|key| key.person.is_some());
                let header = ["ID", "NAME", "SCOPE", "AGE", "ENDS", "LAST USED"];
                let keys = table(header, keys.into_iter().map(|key| row(key, &projects)));
                if people.is_empty() {
                    return keys;
                }
                let header = ["ID", "PERSON", "SCOPE", "SUBJECT", "LOGGED IN", "LAST USED"];
                let people = people
                    .into_iter()
                    .filter_map(|key| Some(person_row(key, key.person.as_ref()?, &projects)));
                format!("{keys}\n\n{}", table(header, people))
            })
        }
        KeyCommand::Logout { keys } => {
            for key in &keys {
                client.end_logins_of(key).await?;
            }
            printer.result(&serde_json::json!({ "logged_out": keys }), String::new)
        }
        KeyCommand::Rm { keys } => {
            for key in &keys {
                client.delete_key(key).await?;
            }
            printer.removed(&keys)
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

/// When a key was last used.
fn used(key: &Key) -> String {
    key.last_used_at_ms.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(at)))
}

/// The names of the projects of keys, by id. The server is asked for them only where keys have projects.
struct Projects(BTreeMap<String, String>);

impl Projects {
    async fn of(client: &Client, keys: &[Key]) -> Result<Self> {
        if keys.iter().all(|key| key.project.is_none()) {
            return Ok(Self(BTreeMap::new()));
        }
        let all = client.list_projects().await?.items.into_iter();
        Ok(Self(all.map(|project| (project.id, project.name)).collect()))
    }

    /// What a key may do, and where.
    fn right(&self, key: &Key) -> String {
        let scope = key.scope.as_str();
        match &key.project {
            Some(id) => format!("{scope}@{}", self.0.get(id).unwrap_or(id)),
            None => scope.to_owned(),
        }
    }
}

fn person_row(key: &Key, person: &KeyPerson, projects: &Projects) -> [String; 6] {
    let is_over = key.expires_at_ms.is_none_or(|end| end <= now_ms());
    [
        key.id.clone(),
        key.name.clone(),
        if person.allowed { projects.right(key) } else { "none".to_owned() },
        format!("{} at {}", person.subject, person.issuer),
        if is_over { "no".to_owned() } else { until(key.expires_at_ms) },
        used(key),
    ]
}

fn row(key: &Key, projects: &Projects) -> [String; 6] {
    [
        key.id.clone(),
        key.name.clone(),
        projects.right(key),
        age(key.created_at_ms),
        until(key.expires_at_ms),
        used(key),
    ]
}
