//! Signed addresses of files: for clients that have no key, such as a browser.
//!
//! A client makes them itself, with the signing key of the sandbox:
//! `signature=v1_BASE64URL(HMAC-SHA256(key, "v1:files:METHOD:PATH:EXPIRES"))`, where `EXPIRES` are seconds since the
//! epoch, 0 for never. The signing key stands for the API key that asked for it.

use atoll_core::id::SandboxId;
use atoll_core::limits::PATH_MAX_BYTES;
use atoll_engine::Asked;
use axum::extract::{FromRequestParts, RawPathParams};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use serde::Deserialize;

use crate::App;
use crate::error::{Failure, Result, Source};
use crate::mac::{hmac, same};
use crate::who::{self, Inside};

/// Length of a signature, bytes: `v1_` and 32 bytes in base 64.
const SIGNATURE_BYTES: usize = 46;

/// Names the file, and carries the signature if there is no key.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Query {
    path: String,
    expires: Option<String>,
    signature: Option<String>,
}

/// The caller that asks for a file, with a key or a signature, and the path of the file.
pub(super) async fn admitted(parts: &mut Parts, app: &App) -> Result<(Inside, String)> {
    let query: Query = serde_html_form::from_str(parts.uri.query().unwrap_or_default())
        .map_err(|error| Failure::bad_daemon(format!("query: {error}")))?;
    let Some(signature) = query.signature.clone() else {
        return Ok((Inside::from_request_parts(parts, app).await?, query.path));
    };
    Asked::of_anybody();
    let params = RawPathParams::from_request_parts(parts, app).await.ok();
    let named = params.as_ref().and_then(who::named).unwrap_or_default();
    let refused = || who::refused("the signature is not valid").from(Source::Proxy);
    let sandbox: SandboxId = named.parse().map_err(|_malformed| refused())?;
    let expires = query.expires.as_deref().unwrap_or_default();
    let seconds: u64 = expires.parse().map_err(|_malformed| refused())?;
    // So the text that is hashed for each candidate is small.
    if signature.len() != SIGNATURE_BYTES || query.path.len() > PATH_MAX_BYTES || expires.len() > 20 {
        return Err(refused());
    }
    let text = format!("v1:files:{}:{}:{expires}", parts.method, query.path);
    let (caller, grant) =
        who::signer(app.host.engine(), &sandbox, |key| same(&sign(key, &text), &signature)).await?;
    if seconds != 0 && seconds < app.host.engine().now_ms() / 1000 {
        return Err(who::refused("the signed address has expired").from(Source::Proxy));
    }
    let inside = Inside::signed(app, sandbox, caller, grant);
    app.host.fill_signed(&parts.extensions, inside.grant().clone())?;
    Ok((inside, query.path))
}

fn sign(key: &str, text: &str) -> String {
    format!("v1_{}", URL_SAFE_NO_PAD.encode(hmac(key.as_bytes(), text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_one_length() {
        assert_eq!(sign("k", "t").len(), SIGNATURE_BYTES);
    }
}
