//! A login in a browser: the server sends the browser to the issuer, and it comes back with a code.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::{Issuer, Verified, invalid, random, readable};

/// How long a person may take at the issuer.
pub(crate) const PATIENCE_S: u64 = 600;
/// Longest code, bytes.
const CODE_MAX_BYTES: usize = 4096;

/// A login that has begun.
#[derive(Debug)]
pub struct BegunInBrowser {
    /// Where to send the browser.
    pub location: String,
    /// What the same browser must bring back, sealed.
    pub kept: Secret,
    /// How long it may take, seconds.
    pub patience_s: u64,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    state: String,
    nonce: String,
    verifier: String,
    redirect_uri: String,
    until_s: u64,
}

/// What the browser brings from the issuer: RFC 6749, section 4.1.2, and RFC 9207. Said twice it cannot be read.
#[derive(Deserialize)]
struct Brought {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

impl Issuer {
    /// Begins a login in a browser, which comes back to `redirect_uri`.
    ///
    /// # Errors
    /// [`Code::IssuerUnavailable`]; [`Code::IssuerInvalid`]; [`Code::LimitExceeded`].
    pub async fn begin_in_browser(&self, redirect_uri: &str) -> Result<BegunInBrowser> {
        let _turn = self.turn()?;
        let metadata = self.metadata().await?;
        let kept = Kept {
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            redirect_uri: redirect_uri.to_owned(),
            until_s: now_s() + PATIENCE_S,
        };
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, kept.verifier.as_bytes()));
        let mut location = metadata.authorization_endpoint.clone();
        location.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.config.client_id),
            ("redirect_uri", redirect_uri),
            ("scope", &self.scope()),
            ("state", &kept.state),
            ("nonce", &kept.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let kept = Secret::new(serde_json::to_string(&kept).map_err(invalid)?);
        Ok(BegunInBrowser { location: location.into(), kept, patience_s: PATIENCE_S })
    }

    /// Goes on with a login when the browser is back, with the query that it came with.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] when it is not the login that this browser began, took too long, or the issuer refuses;
    /// [`Code::IssuerUnavailable`]; [`Code::IssuerInvalid`]; [`Code::LimitExceeded`].
    pub async fn finish_in_browser(&self, kept: &Secret, query: &str) -> Result<Verified> {
        let other = || {
            Error::new(
                Code::Unauthorized,
                "this is not the login that this browser began, or it took too long",
            )
            .hint("log in anew")
        };
        let kept: Kept = serde_json::from_str(kept.reveal()).map_err(|_other| other())?;
        let brought: Brought = serde_html_form::from_str(query).map_err(|_other| other())?;
        let state = brought.state.unwrap_or_default();
        verify_slices_are_equal(state.as_bytes(), kept.state.as_bytes()).map_err(|_other| other())?;
        if kept.until_s < now_s() {
            return Err(other());
        }
        let _turn = self.turn()?;
        let metadata = self.metadata().await?;
        match &brought.iss {
            Some(iss) if *iss != self.config.url => {
                return Err(invalid("the browser comes from another issuer"));
            }
            None if metadata.names_itself => return Err(invalid("it does not name itself")),
            Some(_) | None => {}
        }
        if let Some(error) = &brought.error {
            let why = brought.error_description.as_ref().unwrap_or(error);
            return Err(Error::new(Code::Unauthorized, format!("the issuer refuses: {}", readable(why)))
                .hint("log in anew"));
        }
        let code = brought.code.filter(|code| code.len() <= CODE_MAX_BYTES).ok_or_else(other)?;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code.as_str()),
            ("redirect_uri", kept.redirect_uri.as_str()),
            ("code_verifier", kept.verifier.as_str()),
        ];
        let tokens = self.tokens(&form).await?.map_err(crate::fetch::Denied::into_error)?;
        self.verify(tokens, Some(&kept.nonce), format!("code {}", kept.state)).await
    }

    /// What to ask the issuer for.
    pub(crate) fn scope(&self) -> String {
        let mut all = vec!["openid"];
        all.extend(self.config.scopes.iter().map(String::as_str).filter(|scope| *scope != "openid"));
        all.join(" ")
    }
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
