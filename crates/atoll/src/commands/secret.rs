//! Secrets. A value comes from the terminal or standard input, never from an argument: arguments can be
//! read by everybody on the machine.

use atoll_api::{PutSecret, Secret, SecretUse};
use atoll_client::{Client, ListSecretUses};
use atoll_core::policy::{DomainPattern, SecretScope};

use crate::cli::{SecretCommand, SetSecretArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::terminal;

/// `atoll secret …`
pub(super) async fn secret(client: &Client, printer: Printer, command: SecretCommand) -> Result<()> {
    match command {
        SecretCommand::Set(args) => set(client, printer, args).await,
        SecretCommand::Ls => {
            let list = client.list_secrets().await?;
            printer.result(&list, || {
                table(["NAME", "VERSION", "HOSTS", "FOR", "SET", "NOTE"], list.items.iter().map(row))
            })
        }
        SecretCommand::Rm { names } => {
            for name in names {
                client.delete_secret(&name).await?;
            }
            Ok(())
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
    let restricts = !args.template.is_empty() || !args.sandbox.is_empty() || !args.key.is_empty();
    let hosts = if args.any_host { vec![DomainPattern::Any] } else { args.host };
    if hosts.is_empty() && restricts {
        return Err(Failure::Usage("--template, --sandbox and --key need --host or --any-host".to_owned()));
    }
    let scope = (!hosts.is_empty()).then_some(SecretScope {
        hosts,
        templates: args.template,
        sandboxes: args.sandbox,
        keys: args.key,
    });
    let value = if args.keep_value { None } else { Some(terminal::read_value("Value: ")?) };
    let put = PutSecret { value, scope, note: args.note };
    let secret = client.put_secret(&args.name, &put).await?;
    printer.result(&secret, || {
        let version = secret.versions.last().map_or(0, |version| version.version);
        format!("{} has version {version}, for {}", secret.name, hosts_of(&secret))
    })
}

fn hosts_of(secret: &Secret) -> String {
    let hosts: Vec<_> = secret.scope.hosts.iter().map(ToString::to_string).collect();
    if hosts == ["*"] { "any host".to_owned() } else { hosts.join(", ") }
}

fn row(secret: &Secret) -> [String; 6] {
    let newest = secret.versions.last();
    let scope = &secret.scope;
    let mut users = Vec::new();
    users.extend(scope.templates.iter().map(|name| format!("template {name}")));
    users.extend(scope.sandboxes.iter().map(|name| format!("sandbox {name}")));
    users.extend(scope.keys.iter().map(|id| format!("key {id}")));
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
        format!("{} https://{}{}", one.method, one.host, one.path),
        one.rule.clone(),
    ]
}
