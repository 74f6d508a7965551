//! Who may use a sandbox, and leases.

use atoll_api::{SandboxAccess, TakeLease};
use atoll_client::Client;

use crate::cli::{AccessCommand, LeaseCommand};
use crate::failure::Result;
use crate::output::{Printer, table, until};

/// `atoll access …`
pub(super) async fn access(client: &Client, printer: Printer, command: AccessCommand) -> Result<()> {
    let access = match command {
        AccessCommand::Show { sandbox } => client.sandbox_access(&sandbox).await?,
        AccessCommand::Grant { sandbox, key, role } => client.grant(&sandbox, &key, role).await?,
        AccessCommand::Revoke { sandbox, key } => client.revoke(&sandbox, &key).await?,
        AccessCommand::Set { sandbox, visibility } => client.set_visibility(&sandbox, visibility.0).await?,
    };
    printer.result(&access, || text(&access))
}

fn text(access: &SandboxAccess) -> String {
    let owner = access.owner.iter().map(|key| [key.clone(), "owner".to_owned()]);
    let grants = access.grants.iter().map(|grant| [grant.key.clone(), grant.role.as_str().to_owned()]);
    let keys = table(["KEY", "ROLE"], owner.chain(grants));
    let default = if access.is_default { " (the server's default)" } else { "" };
    format!("{keys}\n\nother keys: {}{default}", access.visibility.as_str())
}

/// `atoll lease …`
pub(super) async fn lease(client: &Client, printer: Printer, command: LeaseCommand) -> Result<()> {
    match command {
        LeaseCommand::Take { ttl, holder, sandbox } => {
            let lease = client.take_lease(&sandbox, &TakeLease { ttl_ms: ttl, holder }).await?;
            printer.result(&lease, || {
                format!("yours as '{}', ends {}", lease.holder, until(Some(lease.expires_at_ms)))
            })
        }
        LeaseCommand::Show { sandbox } => {
            let status = client.lease(&sandbox).await?;
            printer.result(&status, || match &status.lease {
                None => "nobody".to_owned(),
                Some(lease) => {
                    format!("{} (key {}), ends {}", lease.holder, lease.key, until(Some(lease.expires_at_ms)))
                }
            })
        }
        LeaseCommand::Release { force, sandbox } => Ok(client.release_lease(&sandbox, force).await?),
    }
}
