//! The callers that read and write files in a volume: clients that show the token that came with the volume. The token
//! stands for the API key that asked for the volume, is for that volume alone, and allows what the key may do now.

use std::marker::PhantomData;

use atoll_core::Error;
use atoll_core::id::{KeyId, VolumeId};
use atoll_engine::{Caller as EngineCaller, Engine, Target};
use atoll_server::dialect::credentials;
use axum::extract::{FromRequestParts, RawPathParams};
use http::StatusCode;
use http::request::Parts;

use crate::App;
use crate::error::Failure;
use crate::request::Requires;

/// The purpose of the tokens.
const PURPOSE: &str = "e2b volume";
/// The tokens begin with it.
const PREFIX: &str = "ev_";
/// The part of a path that names a volume.
const VOLUME: &str = "volume";

/// The token of a key for a volume.
pub(super) fn token(engine: &Engine, key: &KeyId, volume: &VolumeId) -> String {
    format!("{PREFIX}{}", engine.volume_token(PURPOSE, key, volume).reveal())
}

/// A caller whose token is for the volume that the path names, and whose key may do what `S` requires.
#[derive(Debug, Clone)]
pub(super) struct OnVolume<S> {
    pub(super) id: VolumeId,
    scope: PhantomData<fn() -> S>,
}

fn refused() -> Failure {
    Failure::new(
        StatusCode::UNAUTHORIZED,
        "the volume's token is missing or not valid; Volume.connect(id) gets one",
    )
}

impl<S: Requires> FromRequestParts<App> for OnVolume<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let engine = app.host.engine();
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_malformed| refused())?;
        let named = params.iter().find(|(name, _)| *name == VOLUME).map(|(_, value)| value);
        let id: VolumeId = named.and_then(|text| text.parse().ok()).ok_or_else(refused)?;
        let shown = credentials::bearer(&parts.headers).ok_or_else(refused)?;
        let shown = shown.reveal().strip_prefix(PREFIX).ok_or_else(refused)?;
        let key = engine.verify_volume_token(PURPOSE, shown, &id).map_err(|_wrong| refused())?;
        let caller = EngineCaller::of(&key);
        let told = |error: Error| super::told(&error);
        let grant = engine.authorize(&caller, S::NEEDS, Target::Volume(id.as_str())).await.map_err(told)?;
        app.host.fill(&parts.extensions, grant).map_err(told)?;
        Ok(Self { id, scope: PhantomData })
    }
}
