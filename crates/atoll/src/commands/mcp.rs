//! `mcp`: sandboxes as tools of the Model Context Protocol.
//!
//! Standard output belongs to the protocol: messages for the user go to standard error.

use atoll_client::Client;
use atoll_mcp::{ABANDONED_AFTER_MS, Preset};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::sandbox;
use crate::cli::{LogFormat, McpArgs};
use crate::daemon::Telemetry;
use crate::failure::{Failure, Result};
use crate::output::Printer;
use crate::signals::Stops;

/// `atoll mcp`
pub(super) async fn mcp(client: &Client, printer: Printer, args: McpArgs) -> Result<()> {
    let mut request = sandbox::request(args.preset)?;
    if !args.keep {
        request.idle_timeout_ms.get_or_insert(ABANDONED_AFTER_MS);
    }
    let preset =
        Preset { sandbox: request, given: args.sandbox, max_sandboxes: args.max_sandboxes, keep: args.keep };
    let telemetry = Telemetry::start("warn", LogFormat::Text, false, None)?;
    let stopped = CancellationToken::new();
    let mut stops = Stops::catch()?;
    let stop = stopped.clone();
    // Ends with the program: the first signal ends the session in order, which takes a moment; later ones change nothing.
    tokio::spawn(async move {
        loop {
            stops.next().await;
            stop.cancel();
        }
    });
    let served = match args.listen {
        Some(address) => listen(client, printer, address, preset, stopped).await,
        None => match atoll_mcp::serve_stdio(client.clone(), preset, stopped).await {
            Ok(left) => {
                for id in left {
                    printer.note(&format!("kept: {id}"));
                }
                Ok(())
            }
            Err(error) => Err(Failure::io("the session broke", error)),
        },
    };
    telemetry.shutdown().await;
    served
}

async fn listen(
    client: &Client,
    printer: Printer,
    address: std::net::SocketAddr,
    preset: Preset,
    stopped: CancellationToken,
) -> Result<()> {
    let failed = |error| Failure::io(format!("cannot listen on {address}"), error);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    printer.note(&format!("serving http://{local}/mcp"));
    atoll_mcp::serve_http(listener, client.url(), preset, stopped)
        .await
        .map_err(|error| Failure::io("the server broke", error))
}
