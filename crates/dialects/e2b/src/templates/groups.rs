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
    uuid_of(&format!("{} {tag} {}", one.record.id, one.set_ms))
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
            // The last one, where two were made in the same moment: else the pages would never end.
            let last = all.iter().rposition(|one| assignment_id(&tag, one) == cursor);
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
