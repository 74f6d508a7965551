//! Ports of sandboxes, reached from outside: under host names of the server.

use atoll_core::access::{AccessDraft, Target};
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_dialect_kit::sandboxes;
use atoll_engine::Caller as EngineCaller;
use atoll_engine::{Access, Engine};
use http::Uri;

use crate::auth::{self, Asker};
use crate::extras::{Extras, Port};
use crate::grpc::{Fault, Result};
use crate::wire::sandboxes::{
    SandboxCreateConnectTokenRequest, SandboxCreateConnectTokenResponse, SandboxGetTunnelsRequest,
    SandboxGetTunnelsResponse, TunnelData,
};

/// Name of the accesses that make tunnels.
const NAME: &str = "modal tunnel";
/// Name of the accesses of connect tokens, for a server inside.
const CONNECT: &str = "modal connect token";
/// The port of a token when the client names none.
const CONNECT_PORT: u16 = 8080;

/// Lets every client reach the ports that the sandbox's client opened, and no others.
///
/// # Errors
/// The engine's errors.
pub(super) async fn open(
    engine: &Engine,
    sandbox: &SandboxId,
    ports: &[Port],
    by: &EngineCaller,
) -> Result<()> {
    for port in ports {
        sandboxes::open(engine, sandbox, Target::Port(port.port), NAME, by).await?;
    }
    Ok(())
}

/// Host name and port of an access, by the name under which the client reaches the server.
fn place(asker: &Asker, access: &Access) -> Result<(String, u16)> {
    let authority = &asker.head.authority;
    let url = asker.app.host.ingress().access_url(access, Some(authority.as_str()))?;
    let uri: Uri =
        url.parse().map_err(|_malformed| Fault::unsupported("the server has no name for its ports"))?;
    let port = uri.port_u16().unwrap_or_else(|| if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Ok((uri.host().unwrap_or_default().to_owned(), port))
}

/// The addresses of the opened ports of a sandbox.
///
/// # Errors
/// The engine's errors.
pub(super) fn of(asker: &Asker, sandbox: &SandboxId, extras: &Extras) -> Result<Vec<TunnelData>> {
    if extras.ports.is_empty() {
        return Ok(Vec::new());
    }
    let accesses = asker.engine().accesses(sandbox)?;
    let mut tunnels = Vec::new();
    for opened in &extras.ports {
        let is_its = |access: &&Access| {
            access.target == Target::Port(opened.port) && access.name.as_deref() == Some(NAME)
        };
        let Some(access) = accesses.iter().find(is_its) else { continue };
        let (host, port) = place(asker, access)?;
        tunnels.push(TunnelData {
            unencrypted_host: opened.plain.then(|| host.clone()),
            unencrypted_port: opened.plain.then_some(port.into()),
            host,
            port: port.into(),
            container_port: opened.port.into(),
        });
    }
    Ok(tunnels)
}

/// `SandboxGetTunnels`.
pub(super) async fn get(
    asker: &Asker,
    request: SandboxGetTunnelsRequest,
) -> Result<SandboxGetTunnelsResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Read).await?;
    let record = asker.engine().sandbox(&id)?;
    let tunnels = of(asker, &id, &Extras::of(&record))?;
    Ok(SandboxGetTunnelsResponse { result: None, tunnels })
}

/// `SandboxCreateConnectToken`: an address and a token for the server inside.
pub(super) async fn connect_token(
    asker: &Asker,
    request: SandboxCreateConnectTokenRequest,
) -> Result<SandboxCreateConnectTokenResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Exec).await?;
    let port = match request.port {
        None | Some(0) => CONNECT_PORT,
        Some(port) => u16::try_from(port).map_err(|_large| Fault::invalid("port: is not a port"))?,
    };
    let draft = AccessDraft {
        target: Target::Port(port),
        public: false,
        name: Some(CONNECT.to_owned()),
        ttl_ms: None,
    };
    let made = asker.engine().create_access(&id, draft, asker.caller()).await?;
    let token = made.token.ok_or_else(|| Fault::unsupported("the access has no token"))?;
    let (host, port) = place(asker, &made.record)?;
    let scheme = if port == 443 { "https" } else { "http" };
    Ok(SandboxCreateConnectTokenResponse {
        url: format!("{scheme}://{host}:{port}"),
        token: token.reveal().to_owned(),
    })
}
