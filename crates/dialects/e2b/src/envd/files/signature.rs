//! Signed addresses of files: for clients that have no token, such as a browser.
//!
//! The client makes the signature itself from its access token, so it stands for the key that got that token. The
//! server finds the key by trying those that may use the sandbox.

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::limits::{PATH_MAX_BYTES, USER_MAX_BYTES};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::StatusCode;
use sha2::{Digest as _, Sha256};

use super::{Operation, Query};
use crate::App;
use crate::envd::auth::token;
use crate::error::Failure;

fn refused(message: &str) -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, message)
}

/// The text that is signed. The server may try many tokens on it, for a caller that has shown no right yet. The part
/// that is the same for all tokens can be as long as the caller likes, so it is hashed once.
struct Signed<'a> {
    begun: Sha256,
    query: &'a Query,
}

impl<'a> Signed<'a> {
    fn new(query: &'a Query, operation: Operation) -> Self {
        let path = query.path.as_deref().unwrap_or_default();
        let operation = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let user = query.username.as_deref().unwrap_or_default();
        Self { begun: Sha256::new_with_prefix(format!("{path}:{operation}:{user}:")), query }
    }

    /// The signature that a token makes.
    fn by(&self, token: &str) -> String {
        let mut hasher = self.begun.clone();
        hasher.update(token);
        if let Some(expiration) = &self.query.signature_expiration {
            hasher.update(":");
            hasher.update(expiration);
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(hasher.finalize()))
    }

    /// Whether the token of this key made the signature that was given.
    fn is_by(&self, app: &App, sandbox: &SandboxId, key: &KeyId) -> bool {
        let given = self.query.signature.as_deref().unwrap_or_default();
        same(&self.by(&token(app.host.engine(), key, sandbox)), given)
    }
}

/// Whether it can be a signature at all. If so, the text that is hashed for each candidate is small.
fn is_sane(query: &Query) -> bool {
    const SIGNATURE_BYTES: usize = 46;
    let short = |text: &Option<String>, max: usize| text.as_ref().is_none_or(|text| text.len() <= max);
    query.signature.as_ref().is_some_and(|text| text.len() == SIGNATURE_BYTES && text.starts_with("v1_"))
        && short(&query.path, PATH_MAX_BYTES)
        && short(&query.username, USER_MAX_BYTES)
        && short(&query.signature_expiration, 20)
}

/// Equal in a time that does not depend on where they differ.
fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}

/// The key that a signature stands for.
///
/// # Errors
/// 401 with the texts that the clients know.
pub(crate) fn verify(
    app: &App,
    sandbox: &SandboxId,
    query: &Query,
    operation: Operation,
) -> Result<KeyId, Failure> {
    if query.signature.as_deref().is_none_or(str::is_empty) {
        return Err(refused("missing signature query parameter"));
    }
    let signer = signer(app, sandbox, query, operation);
    let signer = signer.ok_or_else(|| refused("invalid signature"))?;
    if let Some(expiration) = &query.signature_expiration {
        let expires: u64 =
            expiration.parse().map_err(|_malformed| refused("invalid signature expiration"))?;
        if expires < app.host.engine().now_ms() / 1000 {
            return Err(refused("signature is already expired"));
        }
    }
    Ok(signer)
}

fn signer(app: &App, sandbox: &SandboxId, query: &Query, operation: Operation) -> Option<KeyId> {
    if !is_sane(query) {
        return None;
    }
    let signed = Signed::new(query, operation);
    app.host.engine().signer(sandbox, |key| signed.is_by(app, sandbox, key)).ok()?
}

/// The sandbox that a signed address without a sandbox is for: clients without host names make such addresses. Only the
/// keys that made sandboxes are tried.
pub(crate) fn sandbox(app: &App, query: &Query, operation: Operation) -> Option<SandboxId> {
    if !is_sane(query) {
        return None;
    }
    let signed = Signed::new(query, operation);
    let is_it = |(sandbox, owner): &(SandboxId, Option<KeyId>)| {
        owner.as_ref().is_some_and(|key| signed.is_by(app, sandbox, key))
    };
    app.host.engine().owners().into_iter().find(is_it).map(|(sandbox, _)| sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(query: &Query, operation: Operation, token: &str) -> String {
        Signed::new(query, operation).by(token)
    }

    #[test]
    fn as_both_clients_sign() {
        let query = Query { path: Some("x".into()), ..Query::default() };
        assert_eq!(
            sign(&query, Operation::Write, "ea_tok"),
            "v1_0WsDYyFPuvqteXk5MThhAmto3LPuXVGaTaMZGd4ZMQg"
        );
        let expiring = Query { signature_expiration: Some("1".into()), ..query.clone() };
        assert_ne!(sign(&expiring, Operation::Write, "ea_tok"), sign(&query, Operation::Write, "ea_tok"));
        let signed = Query { signature: Some(sign(&query, Operation::Read, "t")), ..query.clone() };
        assert!(is_sane(&signed) && !is_sane(&query));
        assert!(!is_sane(&Query { path: Some("x".repeat(PATH_MAX_BYTES + 1)), ..signed }));
        assert!(same("abc", "abc") && !same("abc", "abd") && !same("abc", "ab"));
    }
}
