//! Tags with their assignments: the version that each means now, and those that it meant before.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{build_id, uuid_of};
use super::tags::{Assigned, Tag, of};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Path, Query, Read};
use crate::sandboxes::list::limit;
use crate::time::of_ms;

/// Assignments that a group shows, when the client asks for no other number.
const SHOWN: i64 = 6;

/// The tags that the client asks for, and their order.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wanted {
    /// Most assignments of each tag.
    assignment_limit: Option<i64>,
    tags_limit: Option<i64>,
    /// Where the page before ended.
    tags_cursor: Option<String>,
    search: Option<String>,
    sort: Option<String>,
}

fn assignment_id(tag: &str, one: &Assigned) -> String {
    let plain = format!("{} {tag} {}", one.record.id, one.set_ms);
    uuid_of(&if one.again == 0 { plain } else { format!("{plain} {}", one.again) })
}

fn assignment(tag: &str, one: &Assigned) -> Value {
    let made = of_ms(one.record.created_ms);
    json!({
        "assignmentId": assignment_id(tag, one),
        "buildId": build_id(&one.record),
        "assignedAt": of_ms(one.set_ms),
        "buildCreatedAt": made,
        "buildFinishedAt": made,
    })
}

/// `GET /templates/{template}/tags/groups`.
pub(super) async fn all(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<axum::Json<Value>> {
    let shown = limit(Some(wanted.assignment_limit.unwrap_or(SHOWN)))?;
    let limit = limit(wanted.tags_limit)?;
    let mut tags = of(&caller, &app, &reference).await?;
    let search = wanted.search.unwrap_or_default().to_ascii_lowercase();
    tags.retain(|one| one.tag.contains(&search));
    // The tags come sorted by name; sorting by time keeps that order among those of the same time.
    match wanted.sort.as_deref() {
        Some("name_asc") => {}
        Some("name_desc") => tags.reverse(),
        Some("latest_asc") => tags.sort_by_key(|one| one.now.set_ms),
        None | Some("" | "latest_desc") => tags.sort_by_key(|one| std::cmp::Reverse(one.now.set_ms)),
        Some(_) => {
            return Err(Failure::bad("sort: must be name_asc, name_desc, latest_asc or latest_desc"));
        }
    }
    let from = match wanted.tags_cursor.filter(|cursor| !cursor.is_empty()) {
        None => 0,
        Some(cursor) => {
            let last = tags.iter().position(|one| one.tag == cursor);
            1 + last
                .ok_or_else(|| Failure::bad("tagsCursor: pass the nextCursor of the last page as it is"))?
        }
    };
    let page: Vec<&Tag> = tags.iter().skip(from).take(limit).collect();
    let next = page.last().filter(|_| tags.len() > from + limit).map(|last| &last.tag);
    let group = |one: &&Tag| {
        let assignments = one.assignments().take(shown).map(|assigned| assignment(&one.tag, assigned));
        let has_more = one.before.len() >= shown;
        json!({"tag": one.tag, "assignments": assignments.collect::<Vec<_>>(), "hasMore": has_more})
    };
    let groups: Vec<Value> = page.iter().map(group).collect();
    Ok(axum::Json(json!({"tags": groups, "nextCursor": next})))
}

/// The assignments that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    limit: Option<i64>,
    /// The last assignment of the page before.
    cursor: Option<String>,
}

/// `GET /templates/{template}/tags/{tag}/assignments`.
pub(super) async fn assignments(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((reference, tag)): Path<(String, String)>,
    Query(wanted): Query<Page>,
) -> Result<axum::Json<Value>> {
    let (tag, limit) = (tag.to_ascii_lowercase(), limit(wanted.limit)?);
    let tags = of(&caller, &app, &reference).await?;
    let all: Vec<&Assigned> = tags.iter().filter(|one| one.tag == tag).flat_map(Tag::assignments).collect();
    let from = match wanted.cursor.filter(|cursor| !cursor.is_empty()) {
        None => 0,
        Some(cursor) => {
            let last = all.iter().position(|one| assignment_id(&tag, one) == cursor);
            1 + last.ok_or_else(|| Failure::bad("cursor: pass the nextCursor of the last page as it is"))?
        }
    };
    let page = all.get(from..).unwrap_or_default();
    let more = page.len() > limit;
    let page = page.get(..limit).unwrap_or(page);
    let next = page.last().filter(|_| more).map(|last| assignment_id(&tag, last));
    let data: Vec<Value> = page.iter().map(|one| assignment(&tag, one)).collect();
    Ok(axum::Json(json!({"data": data, "nextCursor": next})))
}

#[cfg(test)]
mod tests {
    use atoll_core::key::Scope;
    use atoll_walk::{Call, World};

    use super::*;

    #[tokio::test]
    async fn pages_have_every_assignment_of_one_millisecond() {
        let (world, _clock) = World::by_hand(&[crate::DIALECT]).await;
        let key = world.key(Scope::Admin).await;
        let ask = async |method: &str, path: String, body: Value| {
            let headers = vec![
                ("content-type", "application/json".to_owned()),
                ("x-api-key", key.secret.clone()),
                ("authorization", format!("Bearer {}", key.secret)),
            ];
            let body = if body.is_null() { Vec::new() } else { body.to_string().into() };
            let (status, text) = world.send(Call { method: method.to_owned(), path, headers, body }).await;
            assert!(status < 300, "{status} {}", String::from_utf8_lossy(&text));
            serde_json::from_slice::<Value>(&text).unwrap_or_default()
        };
        for user in ["root", "nobody"] {
            ask("POST", "/v1/templates".to_owned(), json!({"name": "t", "image": "host", "user": user}))
                .await;
        }
        for version in [1, 2, 1, 1, 2] {
            let tags = ["x".to_owned()];
            world.engine.tag_template("t", Some(version), &tags, &key.caller).await.unwrap();
        }
        let path = "/e2b/templates/t/tags/x/assignments";
        let whole = ask("GET", path.to_owned(), Value::Null).await["data"].clone();
        assert_eq!(whole.as_array().unwrap().len(), 5, "{whole}");
        let (mut paged, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = ask("GET", format!("{path}?limit=1&cursor={cursor}"), Value::Null).await;
            paged.extend(page["data"].as_array().unwrap().clone());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(Value::from(paged), whole);
    }
}
