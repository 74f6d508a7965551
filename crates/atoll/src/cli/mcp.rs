//! Arguments of the server of the Model Context Protocol.

use std::net::SocketAddr;

use clap::Args;

use super::SandboxArgs;

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Serve streamable HTTP at http://HOST:PORT/mcp instead; clients bring their own API keys
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_loopback)]
    pub(crate) listen: Option<SocketAddr>,
    /// Let the tools use this sandbox, too, by this id or name (repeatable); the first is used unless another is named
    #[arg(long, value_name = "SANDBOX", conflicts_with = "listen")]
    pub(crate) sandbox: Vec<String>,
    /// Most sandboxes that a session makes
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub(crate) max_sandboxes: usize,
    /// Keep the sandboxes of a session that ends
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) preset: SandboxArgs,
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_error| format!("'{text}' is no HOST:PORT, such as 127.0.0.1:4601"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("keys would travel in the clear: listen on 127.0.0.1, behind something that does TLS".to_owned())
}
