//! A server to talk to: one that runs somewhere, or one that was started just for this command.

use atoll_client::Client;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use futures::future::BoxFuture;

use crate::cli::GlobalArgs;
use crate::config;
use crate::daemon;
use crate::failure::{Failure, Result};

/// Something that lives as long as the command needs it, such as an embedded server.
pub(crate) trait Guard: Send {
    /// Takes it down, in order.
    fn shutdown(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// A client, and the embedded server that must be shut down after use, if there is one.
pub(crate) struct Connection {
    /// To the server.
    pub(crate) client: Client,
    /// Whether there is a key to show.
    has_key: bool,
    guard: Option<Box<dyn Guard>>,
}

impl Connection {
    /// A client of a server that ends with the command.
    pub(crate) fn embedded(client: Client, guard: Box<dyn Guard>) -> Self {
        Self { client, has_key: true, guard: Some(guard) }
    }

    /// A client of a server that runs by itself.
    fn to_server((client, has_key): (Client, bool)) -> Self {
        Self { client, has_key, guard: None }
    }

    /// The failure of a command, in the light of how this connection was made.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        if self.has_key { failure } else { failure.without_key() }
    }

    /// Called at the end of every command, whether it worked or not.
    pub(crate) async fn shutdown(self) -> Result<()> {
        match self.guard {
            Some(guard) => guard.shutdown().await,
            None => Ok(()),
        }
    }
}

/// Connects to the server that was named.
pub(crate) async fn connect(args: &GlobalArgs) -> Result<Connection> {
    match with_key(args)? {
        Some(found) => Ok(Connection::to_server(found)),
        None => Err(Failure::Plain(
            Error::new(Code::InvalidArgument, "no server is configured")
                .hint("'sudo atoll serve' starts one and prints what to set; 'atoll login URL' keeps another's address and key"),
        )),
    }
}

/// Connects to the server that was named, or to one that is started for this command.
pub(crate) async fn connect_or_embed(args: &GlobalArgs) -> Result<Connection> {
    match with_key(args)? {
        Some(found) => Ok(Connection::to_server(found)),
        None => Box::pin(daemon::embedded()).await,
    }
}

/// A client of the server that was named, if one was.
pub(crate) fn configured(args: &GlobalArgs) -> Result<Option<Client>> {
    Ok(with_key(args)?.map(|(client, _)| client))
}

/// The same, and whether there is a key to show to it.
fn with_key(args: &GlobalArgs) -> Result<Option<(Client, bool)>> {
    let settings = config::load(args)?;
    let Some(url) = settings.url else { return Ok(None) };
    let has_key = settings.api_key.is_some();
    let key = settings.api_key.unwrap_or_else(|| Secret::new(""));
    Ok(Some((Client::new(&url, &key)?, has_key)))
}
