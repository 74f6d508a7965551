//! Finds out who a person is, by the word of an issuer of identities: a client of OpenID Connect Core 1.0.
//!
//! ```text
//! fetch     requests to the issuer: bounded in size and time, no redirect is followed
//! metadata  what the issuer says of itself (OpenID Connect Discovery), and its keys, as they change
//! key       one key, and what it has signed
//! token     one signed statement, verified
//! claims    what of it becomes a person
//! code      in a browser: authorization code with PKCE (RFC 7636)
//! device    without one: device authorization (RFC 8628)
//! ```
//!
//! This crate remembers no login that is under way: the state that a login needs when it goes on is given to the caller
//! that began it, and must come back. It holds secrets, so the caller seals it.

mod claims;
mod code;
mod device;
mod fetch;
mod key;
mod metadata;
#[cfg(test)]
mod tests;
mod token;

use atoll_core::person::Person;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};

pub use code::BegunInBrowser;
pub use device::{BegunOnDevice, Polled};
use fetch::Http;
use metadata::{Known, Metadata};
use token::Token;

/// Questions to the issuer at once, for people of whom nothing is known yet.
const BUSY_MAX_COUNT: usize = 32;
/// Bytes of randomness in a text that is used once.
const RANDOM_BYTES: usize = 32;

/// This server as the issuer knows it.
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// The issuer's address, as it stands in what it signs.
    pub url: String,
    /// The name under which the issuer knows this server.
    pub client_id: String,
    /// The secret that proves that, if the issuer wants one.
    pub client_secret: Option<Secret>,
    /// The scopes to ask for besides `openid`.
    pub scopes: Vec<String>,
    /// The claims that rules ask for.
    pub claims: Vec<String>,
}

/// An issuer of identities.
#[derive(Debug)]
pub struct Issuer {
    config: IssuerConfig,
    host: String,
    http: Http,
    known: tokio::sync::Mutex<Known>,
    busy: Semaphore,
}

/// A person whose identity was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The person.
    pub person: Person,
    /// Names the exchange: nothing else was ever verified by it.
    pub exchange: String,
}

/// The tokens that an issuer gives for a code.
#[derive(Deserialize)]
struct Tokens {
    id_token: Secret,
    access_token: Option<Secret>,
}

impl Issuer {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for an address that cannot be one.
    pub fn new(config: IssuerConfig) -> Result<Self> {
        let url = metadata::check_issuer(&config.url)?;
        if config.client_id.is_empty() || config.client_id.contains(char::is_control) {
            return Err(Error::invalid("client_id", "must not be empty, nor hold control characters"));
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        let http = Http::new()?;
        let busy = Semaphore::new(BUSY_MAX_COUNT);
        Ok(Self { config, host, http, known: tokio::sync::Mutex::default(), busy })
    }

    /// Its host, for people to read.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Takes one of the places for questions to the issuer at the same moment: no client can make the server ask the
    /// issuer many times at once in vain.
    fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.busy.try_acquire().map_err(|_full| {
            Error::new(Code::LimitExceeded, "too many people log in at the same moment").hint("try again")
        })
    }

    async fn metadata(&self) -> Result<std::sync::Arc<Metadata>> {
        self.known.lock().await.metadata(&self.http, &self.config.url).await
    }

    /// Asks the issuer's token endpoint.
    async fn tokens(&self, form: &[(&str, &str)]) -> Result<std::result::Result<Tokens, fetch::Denied>> {
        let metadata = self.metadata().await?;
        self.http.form(&metadata.token_endpoint, form, &self.config, &metadata).await
    }

    /// Makes a person of the tokens that the issuer gave for a code.
    async fn verify(&self, tokens: Tokens, nonce: Option<&str>, exchange: String) -> Result<Verified> {
        let metadata = self.metadata().await?;
        let id_token = tokens.id_token.reveal();
        let token = Token::read(id_token)?;
        let keys = {
            let mut known = self.known.lock().await;
            known.keys(&self.http, &metadata, token.key_id()).await?
        };
        let signed = token.verify(&keys, &self.config, nonce)?;
        let told = match (&metadata.userinfo_endpoint, &tokens.access_token) {
            (Some(address), Some(access)) if claims::lacks(&signed, &self.config.claims) => {
                Some(self.http.userinfo(address, access).await?)
            }
            _ => None,
        };
        let person = claims::person(&self.config, &signed, told.as_ref())?;
        Ok(Verified { person, exchange })
    }
}

/// A random text that nobody can guess.
fn random() -> Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_unspecified| Error::new(Code::Internal, "the host's random generator failed"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The error when the issuer says something that is not to be believed. The reason is logged, and stands in the error.
fn invalid(why: impl std::fmt::Display) -> Error {
    tracing::warn!(%why, "the issuer of identities is not believed");
    Error::new(Code::IssuerInvalid, format!("the issuer of identities is not believed: {why}"))
        .hint("who runs the server finds more in its log")
}

/// Texts of an issuer that are shown: short, in one line, and nothing but what can be read.
fn readable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
