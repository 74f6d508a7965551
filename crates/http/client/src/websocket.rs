//! Opens a WebSocket over the same HTTP stack as everything else, so that TLS, key and refusals
//! (which carry an error body) are handled in one place.

use base64::Engine as _;
use http::{HeaderValue, Method, header};
use reqwest::Upgraded;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::http::Target;
use crate::{Client, ClientError, Result};

/// Largest message of the server, bytes.
const MESSAGE_MAX_BYTES: usize = 16 << 20;
/// Bytes of messages that wait to be written; more is an error of this crate.
const WRITE_BUFFER_MAX_BYTES: usize = 8 << 20;
/// Bytes read from the socket at once.
const READ_BUFFER_BYTES: usize = 256 << 10;

impl Client {
    pub(crate) async fn websocket(&self, target: Target) -> Result<WebSocketStream<Upgraded>> {
        let mut nonce = [0_u8; 16];
        getrandom::fill(&mut nonce).map_err(|error| self.no_connection(error))?;
        let nonce = base64::engine::general_purpose::STANDARD.encode(nonce);
        let request = self
            .request(Method::GET, target)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, nonce.as_str());
        let response = self.open(request).await?;
        let accept = response.headers().get(header::SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS
            || accept != Some(derive_accept_key(nonce.as_bytes()).as_bytes())
        {
            return Err(ClientError::Protocol("it did not switch to a WebSocket".into()));
        }
        let socket = response.upgrade().await.map_err(|error| self.no_connection(error.without_url()))?;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(MESSAGE_MAX_BYTES))
            .max_frame_size(Some(MESSAGE_MAX_BYTES))
            .max_write_buffer_size(WRITE_BUFFER_MAX_BYTES);
        Ok(WebSocketStream::from_raw_socket(socket, Role::Client, Some(config)).await)
    }
}
