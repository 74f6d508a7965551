//! Signed addresses of files: for whoever has no key, such as a browser.
//!
//! A client makes them itself, with the signing key of the sandbox:
//! `signature=v1_BASE64URL(HMAC-SHA256(key, "v1:files:METHOD:PATH:EXPIRES"))`, where `EXPIRES` are seconds since the
//! epoch, 0 for never. The signing key stands for the API key that asked for it.

use atoll_core::id::SandboxId;
use atoll_core::limits::PATH_MAX_BYTES;
use atoll_dialect_kit::time;
use axum::extract::{FromRequestParts, RawPathParams};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::App;
use crate::error::{Failure, Result, Source};
use crate::who::{self, Inside};

/// Block of SHA-256, bytes.
const BLOCK: usize = 64;
/// Length of a signature, bytes: `v1_` and 32 bytes in base 64.
const SIGNATURE_BYTES: usize = 46;

/// Which file, and by what right if there is no key.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Query {
    path: String,
    expires: Option<String>,
    signature: Option<String>,
}

/// Who asks for a file, and which: with a key, or with a signature.
pub(super) async fn admitted(parts: &mut Parts, app: &App) -> Result<(Inside, String)> {
    let query: Query = serde_html_form::from_str(parts.uri.query().unwrap_or_default())
        .map_err(|error| Failure::bad_daemon(format!("query: {error}")))?;
    let Some(signature) = query.signature.clone() else {
        return Ok((Inside::from_request_parts(parts, app).await?, query.path));
    };
    let params = RawPathParams::from_request_parts(parts, app).await.ok();
    let named = params.as_ref().and_then(who::named).unwrap_or_default();
    let refused = || who::refused("the signature is not valid").from(Source::Proxy);
    let sandbox: SandboxId = named.parse().map_err(|_malformed| refused())?;
    let expires = query.expires.as_deref().unwrap_or_default();
    let seconds: u64 = expires.parse().map_err(|_malformed| refused())?;
    // What is hashed for each candidate is small.
    if signature.len() != SIGNATURE_BYTES || query.path.len() > PATH_MAX_BYTES || expires.len() > 20 {
        return Err(refused());
    }
    let text = format!("v1:files:{}:{}:{expires}", parts.method, query.path);
    let (caller, grant) =
        who::signer(app.host.engine(), &sandbox, |key| same(&sign(key, &text), &signature)).await?;
    if seconds != 0 && seconds < time::now_ms() / 1000 {
        return Err(who::refused("the signed address has expired").from(Source::Proxy));
    }
    let inside = Inside::signed(app, sandbox, caller, grant);
    app.host.fill(&parts.extensions, inside.grant().clone());
    Ok((inside, query.path))
}

fn sign(key: &str, text: &str) -> String {
    format!("v1_{}", URL_SAFE_NO_PAD.encode(hmac(key.as_bytes(), text.as_bytes())))
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0_u8; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let padded = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

/// Equal in a time that does not depend on where they differ.
fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn as_rfc_4231_has_it() {
        let short = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(&short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
        assert_eq!(sign("k", "t").len(), SIGNATURE_BYTES);
        assert!(same("ab", "ab") && !same("ab", "ac") && !same("a", "ab"));
    }
}
