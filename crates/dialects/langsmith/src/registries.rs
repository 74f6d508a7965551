//! Credentials for image registries: `/v2/sandboxes/registries`.
//!
//! The engine keeps one pair of credentials for each host. A registry here is such a pair with a name.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_image::Credentials;
use atoll_server::dialect::Host;
use atoll_store::RegistryRecord;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result};
use crate::request::{Admin, Caller, Json, Name, Query};
use crate::time::iso;

/// A registry as the clients read it. The answer never has the password.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Registry {
    id: String,
    name: String,
    url: String,
    auth_type: &'static str,
    provider: &'static str,
    updated_at: String,
    created_at: String,
}

impl Registry {
    fn new(record: &RegistryRecord) -> Self {
        let time = iso(record.updated_ms);
        Self {
            id: id(&record.host),
            name: record.name.clone().unwrap_or_else(|| record.host.clone()),
            url: record.host.clone(),
            auth_type: "DOCKER_CONFIG",
            provider: "DOCKER_REGISTRY",
            updated_at: time.clone(),
            created_at: time,
        }
    }
}

/// A UUID (version 8) that is always the same for the same host.
fn id(host: &str) -> String {
    let hash = blake3::hash(host.as_bytes()).to_hex();
    format!("{}-{}-8{}-8{}-{}", &hash[..8], &hash[8..12], &hash[12..15], &hash[15..18], &hash[18..30])
}

/// A new registry, or a change of a registry.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    name: Option<String>,
    url: Option<String>,
    auth_type: Option<String>,
    username: Option<String>,
    password: Option<Secret>,
}

impl Request {
    fn check(&self) -> Result<()> {
        match self.auth_type.as_deref() {
            None | Some("DOCKER_CONFIG") => Ok(()),
            Some(other) => Err(Failure::field(
                "auth_type",
                format_args!("'{other}' is not supported by this server; use DOCKER_CONFIG"),
            )),
        }
    }
}

/// Host and port of an address such as `https://registry.example.com/team`.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default().to_ascii_lowercase();
    match host.as_str() {
        // Docker's own names for its hub.
        "index.docker.io" | "registry-1.docker.io" | "hub.docker.com" => "docker.io".to_owned(),
        _ => host,
    }
}

fn fail(error: &Error) -> Failure {
    Failure::control(error)
}

async fn all(host: &Host) -> Result<Vec<RegistryRecord>> {
    host.engine().registries().await.map_err(|error| fail(&error))
}

/// The registry with this name, id or host.
pub(crate) async fn find(host: &Host, name: &str) -> Result<RegistryRecord> {
    let mut records = all(host).await?.into_iter();
    let found = records.find(|record| {
        record.name.as_deref() == Some(name) || record.host == name || id(&record.host) == name
    });
    found.ok_or_else(|| fail(&Error::new(Code::RegistryNotFound, format!("registry '{name}' not found"))))
}

async fn put(host: &Host, at: &str, name: &str, username: &str, password: &Secret) -> Result<Registry> {
    let stored = host.engine().put_registry(at, Some(name), username, password).await;
    stored.map(|record| Registry::new(&record)).map_err(|error| fail(&error))
}

/// Stores credentials.
pub(crate) async fn create(
    _: Caller<Admin>,
    State(host): State<Host>,
    Json(request): Json<Request>,
) -> Result<(StatusCode, Json<Registry>)> {
    request.check()?;
    let missing = |field: &str| Failure::field(field, "is missing");
    let name = request.name.ok_or_else(|| missing("name"))?;
    let at = host_of(&request.url.ok_or_else(|| missing("url"))?);
    let username = request.username.ok_or_else(|| missing("username"))?;
    let password = request.password.ok_or_else(|| missing("password"))?;
    if all(&host).await?.iter().any(|record| record.name.as_deref() == Some(&name) || record.host == at) {
        let error = Error::new(Code::NameTaken, format!("there is a registry '{name}' or one for '{at}'"));
        return Err(fail(&error));
    }
    Ok((StatusCode::CREATED, Json(put(&host, &at, &name, &username, &password).await?)))
}

/// The registries that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct List {
    name_contains: Option<String>,
}

/// A listing, in both shapes.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    items: Vec<Registry>,
    registries: Vec<Registry>,
    next_cursor: Option<String>,
    offset: usize,
}

/// Lists registries.
pub(crate) async fn list(
    _: Caller<Admin>,
    State(host): State<Host>,
    Query(query): Query<List>,
) -> Result<Json<Page>> {
    let part = query.name_contains.unwrap_or_default().to_lowercase();
    let registries = all(&host).await?;
    let mut items: Vec<Registry> = registries.iter().map(Registry::new).collect();
    items.retain(|registry| registry.name.to_lowercase().contains(&part));
    Ok(Json(Page { registries: items.clone(), items, next_cursor: None, offset: 0 }))
}

/// One registry.
pub(crate) async fn read(
    _: Caller<Admin>,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<Json<Registry>> {
    Ok(Json(Registry::new(&find(&host, &name).await?)))
}

/// Changes a registry; fields that the client leaves out stay.
pub(crate) async fn update(
    _: Caller<Admin>,
    State(host): State<Host>,
    Name(name): Name,
    Json(request): Json<Request>,
) -> Result<Json<Registry>> {
    request.check()?;
    let record = find(&host, &name).await?;
    let stored = host.engine().registry_credentials(&record.host).await.map_err(|error| fail(&error))?;
    let Some(Credentials::Basic { username, password }) = stored else {
        return Err(fail(&Error::new(Code::RegistryNotFound, format!("registry '{name}' not found"))));
    };
    let at = request.url.map_or_else(|| record.host.clone(), |url| host_of(&url));
    let name = request.name.or(record.name).unwrap_or_else(|| at.clone());
    let username = request.username.unwrap_or(username);
    let registry = put(&host, &at, &name, &username, &request.password.unwrap_or(password)).await?;
    if at != record.host {
        host.engine().delete_registry(&record.host).await.map_err(|error| fail(&error))?;
    }
    Ok(Json(registry))
}

/// Forgets a registry.
pub(crate) async fn remove(
    _: Caller<Admin>,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<StatusCode> {
    let record = find(&host, &name).await?;
    host.engine().delete_registry(&record.host).await.map_err(|error| fail(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_addresses() {
        assert_eq!(host_of("https://Registry.example.com/team/"), "registry.example.com");
        assert_eq!(host_of("127.0.0.1:5000"), "127.0.0.1:5000");
        assert_eq!(host_of("https://index.docker.io/v1/"), "docker.io");
        assert_eq!(id("a").len(), 36);
        assert_ne!(id("a"), id("b"));
    }
}
