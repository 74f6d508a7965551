//! Secrets. A value comes from the terminal or standard input, never from an argument: arguments can be
//! read by everybody on the machine.

use atoll_api::{PutSecret, Secret, SecretUse};
use atoll_client::{Client, ListSecretUses};
use atoll_core::Code;
use atoll_core::policy::{DomainPattern, SecretScope};

use crate::cli::{SecretCommand, SetSecretArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::terminal;

/// `atoll secret …`
pub(super) async fn secret(client: &Client, printer: Printer, command: SecretCommand) -> Result<()> {
    match command {
        SecretCommand::Set(args) => set(client, printer, args).await,
        SecretCommand::Ls { project } => {
            let list = client.list_secrets(project.as_deref()).await?;
            printer.result(&list, || {
                table(["NAME", "VERSION", "HOSTS", "FOR", "SET", "NOTE"], list.items.iter().map(row))
            })
        }
        SecretCommand::Rm { names, project } => {
            for name in &names {
                client.delete_secret(project.as_deref(), name).await?;
            }
            printer.removed(&names)
        }
        SecretCommand::Audit { name, sandbox, limit } => {
            let list = ListSecretUses { secret: name, sandbox, limit: Some(limit) };
            let uses = client.list_secret_uses(&list).await?;
            let header = ["WHEN", "SECRET", "VERSION", "SANDBOX", "REQUEST", "RULE"];
            printer.result(&uses, || table(header, uses.items.iter().map(use_row)))
        }
        SecretCommand::RotateKey => {
            let rotated = client.rotate_vault_key().await?;
            printer.result(&rotated, || format!("{} values are sealed with the new key", rotated.resealed))
        }
    }
}

async fn set(client: &Client, printer: Printer, args: SetSecretArgs) -> Result<()> {
    let scope = scope(client, &args).await?;
    let value = if args.keep_value { None } else { Some(terminal::read_value("Value: ")?) };
    let put = PutSecret { value, scope, note: args.note };
    let secret = client.put_secret(args.project.as_deref(), &args.name, &put).await?;
    printer.result(&secret, || {
        let version = secret.versions.last().map_or(0, |version| version.version);
        let users = users_of(&secret);
        let users = if users.is_empty() { String::new() } else { format!("; only {}", users.join(", ")) };
        format!("{} has version {version}, for {}{users}", secret.name, hosts_of(&secret))
    })
}

/// Where it may go, if anything is said about that: what is not said stays as it is.
async fn scope(client: &Client, args: &SetSecretArgs) -> Result<Option<SecretScope>> {
    let hosts = if args.any_host { vec![DomainPattern::Any] } else { args.host.clone() };
    let restricts = !args.template.is_empty() || !args.sandbox.is_empty() || !args.key.is_empty();
    if hosts.is_empty() && !restricts && !args.any_sandbox {
        return Ok(None);
    }
    let mut scope = match client.get_secret(args.project.as_deref(), &args.name).await {
        Ok(known) => known.scope,
        Err(error) if error.code() == Some(Code::SecretNotFound) => {
            SecretScope { hosts: Vec::new(), templates: Vec::new(), sandboxes: Vec::new(), keys: Vec::new() }
        }
        Err(error) => return Err(error.into()),
    };
    if !hosts.is_empty() {
        scope.hosts = hosts;
    }
    if restricts || args.any_sandbox {
        scope.templates.clone_from(&args.template);
        scope.sandboxes.clone_from(&args.sandbox);
        scope.keys.clone_from(&args.key);
    }
    if scope.hosts.is_empty() {
        return Err(Failure::Usage("--template, --sandbox and --key need --host or --any-host".to_owned()));
    }
    Ok(Some(scope))
}

fn hosts_of(secret: &Secret) -> String {
    let hosts: Vec<_> = secret.scope.hosts.iter().map(ToString::to_string).collect();
    if hosts == ["*"] { "any host".to_owned() } else { hosts.join(", ") }
}

/// Whose sandboxes may use it; empty when all may.
fn users_of(secret: &Secret) -> Vec<String> {
    let scope = &secret.scope;
    let mut users = Vec::new();
    users.extend(scope.templates.iter().map(|name| format!("template {name}")));
    users.extend(scope.sandboxes.iter().map(|name| format!("sandbox {name}")));
    users.extend(scope.keys.iter().map(|id| format!("key {id}")));
    users
}

fn row(secret: &Secret) -> [String; 6] {
    let newest = secret.versions.last();
    let users = users_of(secret);
    [
        secret.name.clone(),
        newest.map_or_else(String::new, |version| version.version.to_string()),
        hosts_of(secret),
        if users.is_empty() { "every sandbox".to_owned() } else { users.join(", ") },
        newest.map_or_else(String::new, |version| format!("{} ago", age(version.created_at_ms))),
        secret.note.clone(),
    ]
}

fn use_row(one: &SecretUse) -> [String; 6] {
    [
        format!("{} ago", age(one.at_ms)),
        one.secret.clone(),
        one.version.to_string(),
        one.sandbox.clone(),
        format!("{} {}{}", one.method, one.host, one.path),
        one.rule.clone(),
    ]
}
