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
    guard: Option<Box<dyn Guard>>,
}

impl Connection {
    /// Whether the server lives only for this command.
    pub(crate) const fn is_embedded(&self) -> bool {
        self.guard.is_some()
    }

    /// A client of a server that runs by itself, or with `guard` one that ends with the command.
    pub(crate) fn new(client: Client, guard: Option<Box<dyn Guard>>) -> Self {
        Self { client, guard }
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
    match configured(args)? {
        Some(client) => Ok(Connection::new(client, None)),
        None => Err(Failure::Plain(
            Error::new(Code::InvalidArgument, "no server is configured")
                .hint("start one with 'atoll serve' and set ATOLL_URL, or url in the configuration file"),
        )),
    }
}

/// Connects to the server that was named, or to one that is started for this command.
pub(crate) async fn connect_or_embed(args: &GlobalArgs) -> Result<Connection> {
    match configured(args)? {
        Some(client) => Ok(Connection::new(client, None)),
        None => Box::pin(daemon::embedded()).await,
    }
}

/// A client of the server that was named, if one was.
pub(crate) fn configured(args: &GlobalArgs) -> Result<Option<Client>> {
    let settings = config::load(args)?;
    let Some(url) = settings.url else { return Ok(None) };
    let key = settings.api_key.unwrap_or_else(|| Secret::new(""));
    Ok(Some(Client::new(&url, &key)?))
}
