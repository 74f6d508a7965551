//! A login on a device without a browser: a person types a short code into a browser elsewhere, and we ask the issuer
//! until they have (RFC 8628).

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::code::{PATIENCE_S, now_s};
use crate::metadata::may_be_asked;
use crate::{Issuer, Verified, invalid};

/// Bounds of the interval at which an issuer may want to be asked, seconds.
const INTERVAL_MIN_S: u64 = 1;
const INTERVAL_MAX_S: u64 = 60;
/// Longest code that a person types, and address that they go to, bytes.
const USER_CODE_MAX_BYTES: usize = 64;
const ADDRESS_MAX_BYTES: usize = 2048;
/// Longest code of the device, bytes.
const CODE_MAX_BYTES: usize = 4096;

/// A login that has begun.
#[derive(Debug)]
pub struct BegunOnDevice {
    /// The code to type.
    pub user_code: String,
    /// The address at which to type it.
    pub address: String,
    /// The same with the code in it, if the issuer has such a one.
    pub address_with_code: Option<String>,
    /// How often to ask, seconds.
    pub interval_s: u64,
    /// How long it may take, seconds.
    pub patience_s: u64,
    /// What the client that began the login must bring back, sealed.
    pub kept: Secret,
}

/// What has become of a login.
#[derive(Debug)]
pub enum Polled {
    /// The person has not typed the code yet.
    Pending,
    /// The same, and the issuer was asked too often: five seconds more between two questions.
    Slower,
    /// It is done.
    Verified(Box<Verified>),
}

#[derive(Serialize, Deserialize)]
struct Kept {
    device_code: String,
    until_s: u64,
}

#[derive(Deserialize)]
struct Answer {
    device_code: String,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

impl Issuer {
    /// Begins a login on a device without a browser.
    ///
    /// # Errors
    /// [`Code::InvalidState`] when the issuer knows no such logins; else as [`Self::begin_in_browser`].
    pub async fn begin_on_device(&self) -> Result<BegunOnDevice> {
        let _turn = self.turn()?;
        let metadata = self.metadata().await?;
        let address = metadata.device_endpoint.as_ref().ok_or_else(|| {
            Error::new(Code::InvalidState, "the issuer of identities has no device flow")
                .hint("log in to the dashboard, or ask for an API key")
        })?;
        let scope = self.scope();
        let answer = self.http.form(address, &[("scope", &scope)], &self.config, &metadata).await?;
        let answer: Answer = answer.map_err(crate::fetch::Denied::into_error)?;
        let is_code = |text: &str| {
            (1..=USER_CODE_MAX_BYTES).contains(&text.len())
                && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let is_address = |text: &String| {
            text.len() <= ADDRESS_MAX_BYTES
                && text.is_ascii()
                && Url::parse(text).is_ok_and(|url| may_be_asked(&url))
                && !text.contains(|letter: char| letter.is_control() || letter == ' ')
        };
        if !is_code(&answer.user_code)
            || !is_address(&answer.verification_uri)
            || answer.device_code.len() > CODE_MAX_BYTES
        {
            return Err(invalid("what it wants to be typed, or where, cannot be shown"));
        }
        let patience_s = answer.expires_in.min(PATIENCE_S * 3);
        let kept = Kept { device_code: answer.device_code, until_s: now_s() + patience_s };
        Ok(BegunOnDevice {
            user_code: answer.user_code,
            address: answer.verification_uri,
            address_with_code: answer.verification_uri_complete.filter(is_address),
            interval_s: answer.interval.unwrap_or(5).clamp(INTERVAL_MIN_S, INTERVAL_MAX_S),
            patience_s,
            kept: Secret::new(serde_json::to_string(&kept).map_err(invalid)?),
        })
    }

    /// Asks once what has become of it.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] when it took too long, or the person said no; else as [`Self::finish_in_browser`].
    pub async fn poll_device(&self, kept: &Secret) -> Result<Polled> {
        let late =
            || Error::new(Code::Unauthorized, "this login took too long, or is none").hint("begin anew");
        let kept: Kept = serde_json::from_str(kept.reveal()).map_err(|_other| late())?;
        if kept.until_s < now_s() {
            return Err(late());
        }
        let _turn = self.turn()?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
            ("device_code", kept.device_code.as_str()),
        ];
        match self.tokens(&form).await? {
            Err(denied) if denied.error == "authorization_pending" => Ok(Polled::Pending),
            Err(denied) if denied.error == "slow_down" => Ok(Polled::Slower),
            Err(denied) if denied.error == "expired_token" => Err(late()),
            Err(denied) => Err(denied.into_error()),
            Ok(tokens) => {
                let exchange = format!("device {}", kept.device_code);
                Ok(Polled::Verified(Box::new(self.verify(tokens, None, exchange).await?)))
            }
        }
    }
}
