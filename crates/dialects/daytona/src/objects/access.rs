//! The clients that may store files: they show credentials that stand for an API key for an hour.
//!
//! The credentials are made from the installation's secret and stored nowhere: the session token names the key and the
//! end, and the secret key, which never travels again, belongs to both. They allow what the API key may do at that
//! moment.

use atoll_core::id::KeyId;
use atoll_core::secret::Secret;
use atoll_core::sharing::Needs;
use atoll_dialect_kit::request::Caller;
use atoll_engine::{Caller as EngineCaller, Engine, Grant, Target};
use axum::extract::State;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::s3::Refusal;
use super::sign::Chain;
use super::{BUCKET, PLACE, sign};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Root};
use crate::view::{ORGANIZATION, TARGET};
use crate::who::Manage;

/// How long credentials are good, milliseconds.
const LIFE_MS: u64 = 3_600_000;
/// Longest text that can be a session token, bytes.
const TOKEN_MAX_BYTES: usize = 256;
/// Header that carries the session token.
const TOKEN_HEADER: &str = "x-amz-security-token";
/// Header that names the SDK, and its value for Python.
const SOURCE_HEADER: &str = "x-daytona-source";
const PYTHON: &str = "sdk-python";

/// The secret key of credentials that end at `until`.
fn secret(engine: &Engine, key: &KeyId, until: &str) -> Secret {
    engine.key_token(&format!("daytona storage secret {until}"), key)
}

fn purpose(until: &str) -> String {
    format!("daytona storage {until}")
}

/// `GET /object-storage/push-access`.
pub(crate) async fn push_access(
    caller: Caller<Manage>,
    root: Root,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Json<Value>> {
    let is_python = headers.get(SOURCE_HEADER).is_some_and(|source| source == PYTHON);
    if is_python && root.scheme() != "https" {
        // The SDK's S3 library would only say 'BadScheme', and not what to do.
        return Err(Failure::bad(
            "the Python SDK sends files over https only: reach this server by https, with a certificate that the \
             whole machine trusts (docs/daytona.md); or use the TypeScript SDK, or 'atoll template build'",
        ));
    }
    let (engine, key) = (app.host.engine(), caller.key());
    let until = (engine.now_ms() + LIFE_MS).to_string();
    let token = engine.key_token(&purpose(&until), &key);
    Ok(Json(json!({
        "accessKey": key,
        "secret": secret(engine, &key, &until).reveal(),
        "sessionToken": format!("{until}-{}", token.reveal()),
        "storageUrl": root.url(PLACE),
        "organizationId": ORGANIZATION,
        "bucket": BUCKET,
        "region": TARGET,
    })))
}

/// The key that a signed request stands for, the chain for its body, and its right to store.
pub(super) async fn admit(app: &App, parts: &Parts) -> Result<(KeyId, Chain, Grant), Refusal> {
    let engine = app.host.engine();
    let refused = || Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", "the credentials are not valid");
    let shown = parts.headers.get(TOKEN_HEADER).and_then(|token| token.to_str().ok());
    let shown = shown.filter(|token| token.len() <= TOKEN_MAX_BYTES).ok_or_else(refused)?;
    let (until, token) = shown.split_once('-').ok_or_else(refused)?;
    let key = engine.verify_key_token(&purpose(until), token).map_err(|_wrong| refused())?;
    let until_ms: u64 = until.parse().map_err(|_malformed| refused())?;
    if until_ms < engine.now_ms() {
        let why = "the credentials have expired: ask for push access again";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "ExpiredToken", why));
    }
    let chain = sign::signed(parts, secret(engine, &key.id, until).reveal());
    let chain = chain.ok_or(super::s3::OTHER_SIGNATURE)?;
    let caller = EngineCaller::of(&key);
    let grant = engine.authorize(&caller, Needs::MANAGE, Target::Installation).await;
    Ok((key.id, chain, grant.map_err(|_weak| refused())?))
}
