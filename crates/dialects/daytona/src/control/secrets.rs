//! Secrets of the installation, `/secret`, and the variables of sandboxes that stand for them. The protocol means by a
//! secret what Atoll means: clients send values, and no answer holds them; they go out only in requests to the hosts
//! that a secret is for. The variable holds a placeholder.

use std::collections::BTreeMap;

use atoll_core::policy::{DomainPattern, EgressPolicy, InjectRule, SecretScope};
use atoll_core::secret::Secret;
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error};
use atoll_dialect_kit::request::{Admin, Caller};
use atoll_dialect_kit::{secrets as stand_ins, time};
use atoll_engine::{Caller as EngineCaller, Engine, SecretDraft, SecretIs};
use atoll_store::SecretRecord;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Path, Query, Root};
use crate::view;
use crate::who::{Manage, On};

/// Prefix of the names of the rules.
const RULE: &str = "daytona-secret-";
/// Entries of a page when the client gives no number, and at most.
const PAGE_COUNT: usize = 100;
const PAGE_MAX_COUNT: usize = 200;

/// Secrets by the variables that a client asks for: one or more in each entry.
pub(super) type Asked = Vec<BTreeMap<String, String>>;

/// The placeholder of a secret in every sandbox. It is worth nothing anywhere else.
fn placeholder(record: &SecretRecord) -> String {
    format!("dtn_secret_{}", record.id)
}

fn shown(record: &SecretRecord) -> Value {
    let updated_ms = record.versions.last().map_or(record.created_ms, |version| version.created_ms);
    let hosts = record.scope.hosts.iter().filter(|host| **host != DomainPattern::Any);
    json!({
        "id": record.id,
        "name": record.name,
        "description": Some(&record.note).filter(|note| !note.is_empty()),
        "placeholder": placeholder(record),
        "hosts": hosts.map(ToString::to_string).collect::<Vec<_>>(),
        "createdAt": time::iso(record.created_ms),
        "updatedAt": time::iso(updated_ms),
    })
}

fn missing(named: &str) -> Failure {
    Failure::not_found(format!("Secret {} not found", atoll_core::error::shorten(named)))
}

/// The secret with this id or name.
fn find(engine: &Engine, caller: &EngineCaller, named: &str) -> Result<SecretRecord> {
    let by_id = engine.secrets(caller.project()).into_iter().find(|record| record.id.as_str() == named);
    by_id.or_else(|| engine.secret(caller.project(), named).ok()).ok_or_else(|| missing(named))
}

#[derive(Debug, Deserialize)]
pub(super) struct Create {
    name: String,
    value: Secret,
    description: Option<String>,
    hosts: Option<Vec<DomainPattern>>,
}

/// The hosts that a secret may go to. A secret without hosts may go to every host, as far as rules say so: that is why
/// only callers who may do that may make one.
fn scope(hosts: Option<Vec<DomainPattern>>, before: Option<&SecretScope>) -> Option<SecretScope> {
    let hosts = match (hosts, before) {
        (Some(hosts), _) if !hosts.is_empty() => hosts,
        (None, Some(_)) => return None,
        _ => vec![DomainPattern::Any],
    };
    let before = before.cloned();
    Some(match before {
        Some(before) => SecretScope { hosts, ..before },
        None => SecretScope { hosts, templates: Vec::new(), sandboxes: Vec::new(), keys: Vec::new() },
    })
}

pub(super) async fn create(
    caller: Caller<Admin>,
    State(app): State<App>,
    Json(new): Json<Create>,
) -> Result<(StatusCode, Json<Value>)> {
    let draft = SecretDraft {
        value: Some(new.value),
        scope: scope(new.hosts, None),
        note: new.description,
        is: SecretIs::New,
    };
    let by = caller.engine();
    let made = app.host.engine().put_secret(by.project(), &new.name, draft, by).await?;
    Ok((StatusCode::CREATED, Json(shown(&made))))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Update {
    value: Option<Secret>,
    description: Option<String>,
    hosts: Option<Vec<DomainPattern>>,
}

/// Values that the client does not send stay.
pub(super) async fn update(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
    Json(asked): Json<Update>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let known = find(engine, caller.engine(), &named)?;
    let draft = SecretDraft {
        value: asked.value,
        scope: scope(asked.hosts, Some(&known.scope)),
        note: asked.description,
        is: SecretIs::Known,
    };
    let by = caller.engine();
    Ok(Json(shown(&engine.put_secret(by.project(), &known.name, draft, by).await?)))
}

pub(super) async fn read(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(shown(&find(app.host.engine(), caller.engine(), &named)?)))
}

pub(super) async fn remove(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let known = find(engine, caller.engine(), &named)?;
    match engine.delete_secret(caller.engine().project(), &known.name).await {
        Err(error) if error.code == Code::SecretNotFound => Err(missing(&named)),
        removed => Ok(removed.map(|()| StatusCode::NO_CONTENT)?),
    }
}

/// All secrets, by name.
pub(super) async fn list(caller: Caller<Manage>, State(app): State<App>) -> Json<Vec<Value>> {
    Json(app.host.engine().secrets(caller.engine().project()).iter().map(shown).collect())
}

/// The page that the client asks for, and its order.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    /// The id of the last secret of the page before.
    cursor: Option<String>,
    limit: Option<usize>,
    name: Option<String>,
    sort: Option<String>,
    order: Option<String>,
}

pub(super) async fn page(
    caller: Caller<Manage>,
    State(app): State<App>,
    Query(page): Query<Page>,
) -> Result<Json<Value>> {
    let limit = page.limit.unwrap_or(PAGE_COUNT);
    if !(1..=PAGE_MAX_COUNT).contains(&limit) {
        return Err(Failure::bad(format!("limit: must lie between 1 and {PAGE_MAX_COUNT}")));
    }
    let mut all = app.host.engine().secrets(caller.engine().project());
    if let Some(part) = &page.name {
        all.retain(|record| record.name.contains(part.as_str()));
    }
    let updated = |record: &SecretRecord| record.versions.last().map_or(0, |version| version.created_ms);
    match page.sort.as_deref() {
        Some("name") => all.sort_by(|one, other| one.name.cmp(&other.name)),
        Some("updatedAt") => all.sort_by_key(|record| (updated(record), record.id.clone())),
        None | Some("" | "createdAt") => all.sort_by_key(|record| (record.created_ms, record.id.clone())),
        Some(_) => return Err(Failure::bad("sort: must be name, createdAt or updatedAt")),
    }
    match page.order.as_deref() {
        None | Some("" | "desc") => all.reverse(),
        Some("asc") => {}
        Some(_) => return Err(Failure::bad("order: must be asc or desc")),
    }
    let total = all.len();
    if let Some(after) = page.cursor.filter(|cursor| !cursor.is_empty()) {
        let at = all.iter().position(|record| record.id.as_str() == after);
        let at = at.ok_or_else(|| Failure::bad("cursor: is none of this list"))?;
        all.drain(..=at);
    }
    let next = all.get(limit - 1).filter(|_| all.len() > limit).map(|record| record.id.to_string());
    let items: Vec<Value> = all.iter().take(limit).map(shown).collect();
    Ok(Json(json!({"items": items, "total": total, "nextCursor": next})))
}

/// The rules for the secrets that a client asks for in a sandbox that reaches what `egress` allows.
fn rules(
    engine: &Engine,
    caller: &EngineCaller,
    asked: &Asked,
    egress: &EgressPolicy,
) -> Result<Vec<InjectRule>> {
    let mut rules = Vec::new();
    for (variable, named) in asked.iter().flatten() {
        let gone = || Failure::bad(format!("secrets: '{}' is not there", atoll_core::error::shorten(named)));
        let secret = engine.secret(caller.project(), named).map_err(|_missing| gone())?;
        let name = format!("{RULE}{variable}");
        let mut rule = stand_ins::rule("secrets", &name, variable, &secret, egress)?;
        for one in &mut rule.placeholders {
            one.value = Some(placeholder(&secret));
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// The policy for a sandbox with these secrets; `None` where the client asks neither for a policy nor for secrets.
pub(super) async fn egress(
    engine: &Engine,
    caller: &EngineCaller,
    asked: &Asked,
    said: Option<EgressPolicy>,
    template: Option<&str>,
) -> Result<Option<EgressPolicy>> {
    if asked.iter().all(BTreeMap::is_empty) {
        return Ok(said);
    }
    let told = said.is_some();
    let mut egress = match said {
        Some(policy) => policy,
        None => engine.egress_unless_told(caller.project(), template).await?,
    };
    let rules = rules(engine, caller, asked, &egress)?;
    if !told {
        stand_ins::open(&mut egress, &rules);
    }
    egress.inject.extend(rules);
    Ok(Some(egress))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OfSandbox {
    secrets: Asked,
}

/// `PUT /sandbox/{sandbox}/secrets`: the sandbox gets these secrets and loses all others.
pub(super) async fn replace(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Json(asked): Json<OfSandbox>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let mut egress = engine.sandbox(&on.id)?.spec.egress;
    egress.inject.retain(|rule| !rule.name.starts_with(RULE));
    let rules = rules(engine, on.caller.engine(), &asked.secrets, &egress)?;
    egress.inject.extend(rules);
    let update =
        SandboxUpdate { egress: Some(egress), asked_by: Some(on.caller.key()), ..SandboxUpdate::default() };
    let record = engine.update_sandbox(&on.id, update).await.map_err(|error| refused(&error))?;
    Ok(Json(view::sandbox(&record, &root)))
}

fn refused(error: &Error) -> Failure {
    match error.code {
        // A thing that the body names is missing: 404 would be about the path.
        Code::SecretNotFound => Failure::bad(atoll_dialect_kit::sentence(error)),
        _ => Failure::of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_secrets_go() {
        let host = |text: &str| text.parse::<DomainPattern>().unwrap();
        assert_eq!(scope(None, None).unwrap().hosts, [DomainPattern::Any]);
        let some = scope(Some(vec![host("a.com")]), None).unwrap();
        assert_eq!(some.hosts, [host("a.com")]);
        assert!(scope(None, Some(&some)).is_none());
        let mut locked = some;
        locked.templates.push("reviewer".into());
        // New hosts change nothing else of the lock.
        let other = scope(Some(vec![host("b.com")]), Some(&locked)).unwrap();
        assert_eq!((other.hosts, other.templates.len()), (vec![host("b.com")], 1));
        assert_eq!(scope(Some(Vec::new()), Some(&locked)).unwrap().hosts, [DomainPattern::Any]);
    }

    #[test]
    fn values_are_in_no_text() {
        let new: Create = serde_json::from_str(r#"{"name":"A","value":"sesame"}"#).unwrap();
        assert!(!format!("{new:?}").contains("sesame"));
    }
}
