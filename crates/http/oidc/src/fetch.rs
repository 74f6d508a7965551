//! Requests to the issuer. An answer gets a bounded time and a bounded length, and leads nowhere else.

use std::time::Duration;

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::metadata::Metadata;
use crate::{IssuerConfig, invalid, readable};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, bytes.
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// Why an issuer gives nothing, in the words of RFC 6749, section 5.2.
#[derive(Debug, Deserialize)]
pub(crate) struct Denied {
    pub(crate) error: String,
    error_description: Option<String>,
}

impl Denied {
    pub(crate) fn into_error(self) -> Error {
        tracing::warn!(error = ?self.error, why = ?self.error_description, "the issuer gives no token");
        let text = self.error_description.unwrap_or(self.error);
        Error::new(Code::Unauthorized, format!("the issuer of identities refuses: {}", readable(&text)))
            .hint("log in anew")
    }
}

#[derive(Debug)]
pub(crate) struct Http(reqwest::Client);

impl Http {
    pub(crate) fn new() -> Result<Self> {
        reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .build()
            .map(Self)
            .map_err(|error| Error::new(Code::Internal, format!("cannot set up HTTP: {error}")))
    }

    /// A document that everybody may read.
    pub(crate) async fn document<T: DeserializeOwned>(&self, address: &Url) -> Result<T> {
        let (status, body) = send(self.0.get(address.clone())).await?;
        read(address, status, &body)
    }

    /// What the issuer says of the person to whom an access token belongs.
    pub(crate) async fn userinfo(&self, address: &Url, token: &Secret) -> Result<Map<String, Value>> {
        let (status, body) = send(self.0.get(address.clone()).bearer_auth(token.reveal())).await?;
        read(address, status, &body)
    }

    /// Asks as the client that this server is.
    pub(crate) async fn form<T: DeserializeOwned>(
        &self,
        address: &Url,
        form: &[(&str, &str)],
        config: &IssuerConfig,
        metadata: &Metadata,
    ) -> Result<std::result::Result<T, Denied>> {
        let mut form = form.to_vec();
        let mut request = self.0.post(address.clone());
        match &config.client_secret {
            Some(secret) if metadata.takes_basic() => {
                // RFC 6749, section 2.3.1: as in a form.
                request = request.basic_auth(encoded(&config.client_id)?, Some(encoded(secret.reveal())?));
            }
            Some(secret) => {
                let both = [("client_id", config.client_id.as_str()), ("client_secret", secret.reveal())];
                form.extend(both);
            }
            None => form.push(("client_id", &config.client_id)),
        }
        let body = serde_html_form::to_string(&form).map_err(invalid)?;
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        let (status, body) = send(request).await?;
        if status.is_client_error()
            && let Ok(denied) = serde_json::from_slice(&body)
        {
            return Ok(Err(denied));
        }
        read(address, status, &body).map(Ok)
    }
}

/// As in a form.
fn encoded(text: &str) -> Result<String> {
    let pair = serde_html_form::to_string([("", text)]).map_err(invalid)?;
    Ok(pair.trim_start_matches('=').to_owned())
}

async fn send(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>)> {
    let response = request.header(ACCEPT, "application/json").send().await.map_err(unreachable)?;
    let status = response.status();
    Ok((status, body(response).await?))
}

async fn body(mut response: Response) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(unreachable)? {
        if all.len() + piece.len() > ANSWER_MAX_BYTES {
            return Err(invalid("an answer is larger than 1 MiB"));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Reads an answer. Errors name its address and never show its content.
fn read<T: DeserializeOwned>(address: &Url, status: StatusCode, body: &[u8]) -> Result<T> {
    let place = format!("{}{}", address.host_str().unwrap_or_default(), address.path());
    if status.is_server_error() {
        return Err(unavailable(&format!("{place} answers {status}")));
    }
    if !status.is_success() {
        return Err(invalid(format_args!("{place} answers {status}")));
    }
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        invalid(format_args!("the answer of {place} cannot be read, line {line} column {column}"))
    })
}

#[expect(clippy::needless_pass_by_value, reason = "fits map_err")]
fn unreachable(error: reqwest::Error) -> Error {
    let mut chain = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        chain.push_str(": ");
        chain.push_str(&cause.to_string());
        source = cause.source();
    }
    unavailable(&chain)
}

fn unavailable(why: &str) -> Error {
    tracing::warn!(why, "the issuer of identities cannot be asked");
    Error::new(Code::IssuerUnavailable, "the issuer of identities cannot be reached")
        .hint("try again; who runs the server finds more in its log")
}
