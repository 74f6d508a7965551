//! Tracing calls that come here because the client has set `LANGSMITH_ENDPOINT`.
//!
//! The SDK has one variable for two products. The server keeps no traces, and says so in the way that costs the client
//! least: its capabilities say that nothing is ingested in batches, and it accepts runs and drops them, because the
//! client would retry and log a refusal on every trace.

use atoll_server::dialect::Pieces;
use axum::Router;
use axum::body::Body;
use axum::routing::{get, patch, post};
use http::StatusCode;
use serde_json::{Value, json};

use crate::App;
use crate::request::Json;

/// Routes of the tracing API, below the root and below `/api/v1`.
pub(crate) fn routes() -> Router<App> {
    let both = || {
        Router::new()
            .route("/info", get(info))
            .route("/runs", post(dropped))
            .route("/runs/batch", post(dropped))
            .route("/runs/multipart", post(dropped))
            .route("/runs/{id}", patch(dropped))
            .route("/ok", get(ok))
    };
    both().nest("/api/v1", both()).nest("/v1", both())
}

async fn info() -> Json<Value> {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "instance_flags": {"tracing": false},
        "batch_ingest_config": {
            "use_multipart_endpoint": true,
            "scale_up_qsize_trigger": 1000,
            "scale_up_nthreads_limit": 1,
            "scale_down_nempty_trigger": 4,
            "size_limit": 100,
            "size_limit_bytes": 20_971_520
        }
    }))
}

async fn ok() -> Json<Value> {
    Json(json!({"ok": true}))
}

/// Takes a body and throws it away, so that the connection can be used again.
async fn dropped(body: Body) -> (StatusCode, Json<Value>) {
    let mut pieces = Pieces::new(body);
    while let Ok(Some(_)) = pieces.next().await {}
    (StatusCode::ACCEPTED, Json(json!({"message": "traces are not kept here"})))
}
