//! The calls that every kind of record has.

use atoll_engine::Caller as EngineCaller;
use axum::extract::State;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Kind, List, Record, Records};
use crate::App;
use crate::error::Result;
use crate::once::Promised;
use crate::request::{Caller, Json, Manage, Path, Query, Read};

/// A kind of record that clients make, see and change.
pub(crate) trait Api: Kind + Default {
    /// The fields of a request; a field that is absent stays as it is.
    type Asked: DeserializeOwned + Send + 'static;
    /// The field under which lists have the records.
    const PLURAL: &'static str;

    /// The records of this kind.
    fn records(app: &App) -> &Records<Self>;

    /// Applies a request's fields, and checks the result.
    ///
    /// # Errors
    /// 400.
    fn apply(&mut self, asked: Self::Asked, app: &App, caller: &EngineCaller) -> Result<()>;

    /// A record as its clients see it.
    fn view(record: &Record<Self>) -> Value;
}

pub(crate) async fn create<T: Api>(
    caller: Caller<Manage>,
    State(app): State<App>,
    promised: Promised,
    Json(asked): Json<T::Asked>,
) -> Result<Json<Value>> {
    let mut what = T::default();
    what.apply(asked, &app, caller.engine())?;
    Ok(Json(T::view(&T::records(&app).create(&caller, what, promised).await?)))
}

pub(crate) async fn list<T: Api>(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    Ok(Json(T::records(&app).page(&caller, T::PLURAL, query, T::view).await?))
}

pub(crate) async fn one<T: Api>(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(T::view(&T::records(&app).find(&caller, &id).await?)))
}

/// The change holds for devboxes and builds that begin from now on.
pub(crate) async fn update<T: Api>(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<T::Asked>,
) -> Result<Json<Value>> {
    let (with, by) = (app.clone(), caller.engine().clone());
    let changed = T::records(&app).change(&caller, &id, move |what| what.apply(asked, &with, &by)).await?;
    Ok(Json(T::view(&changed)))
}

pub(crate) async fn remove<T: Api>(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(T::view(&T::records(&app).remove(&caller, &id).await?)))
}
