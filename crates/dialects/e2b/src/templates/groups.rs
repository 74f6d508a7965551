//! Tags with what they were assigned to. What a tag meant before it was moved is not remembered: each has one assignment.

use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{build_id, uuid_of};
use super::tags::{Assigned, of};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Query, Read};
use crate::sandboxes::list::limit;
use crate::time::of_ms;

/// Which tags, and in what order.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wanted {
    tags_limit: Option<i64>,
    /// Where the page before ended.
    tags_cursor: Option<String>,
    search: Option<String>,
    sort: Option<String>,
}

fn assignment(one: &Assigned) -> Value {
    let made = of_ms(one.record.created_ms);
    json!({
        "assignmentId": uuid_of(&format!("{} {} {}", one.record.id, one.tag, one.set_ms)),
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
    let limit = limit(wanted.tags_limit)?;
    let mut tags = of(&caller, &app, &reference).await?;
    let search = wanted.search.unwrap_or_default().to_ascii_lowercase();
    tags.retain(|one| one.tag.contains(&search));
    // They come by name, and stay so among those of one time.
    match wanted.sort.as_deref() {
        Some("name_asc") => {}
        Some("name_desc") => tags.reverse(),
        Some("latest_asc") => tags.sort_by_key(|one| one.set_ms),
        None | Some("" | "latest_desc") => tags.sort_by_key(|one| std::cmp::Reverse(one.set_ms)),
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
    let page: Vec<&Assigned> = tags.iter().skip(from).take(limit).collect();
    let next = page.last().filter(|_| tags.len() > from + limit).map(|last| &last.tag);
    let groups: Vec<Value> = page
        .iter()
        .map(|one| json!({"tag": one.tag, "assignments": [assignment(one)], "hasMore": false}))
        .collect();
    Ok(axum::Json(json!({"tags": groups, "nextCursor": next})))
}

/// `GET /templates/{template}/tags/{tag}/assignments`.
pub(super) async fn assignments(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((reference, tag)): Path<(String, String)>,
) -> Result<axum::Json<Value>> {
    let tag = tag.to_ascii_lowercase();
    let tags = of(&caller, &app, &reference).await?;
    let data: Vec<Value> = tags.iter().filter(|one| one.tag == tag).map(assignment).collect();
    Ok(axum::Json(json!({"data": data, "nextCursor": null})))
}
