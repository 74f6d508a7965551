//! Finding sandboxes: lists, names, tags.

use std::collections::BTreeMap;

use atoll_core::key::Scope;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Needs;
use atoll_core::spec::SandboxUpdate;
use atoll_dialect_kit::sandboxes::{self, Page};
use atoll_engine::{SandboxQuery, Target};
use atoll_store::SandboxRecord;

use super::apps::app_id;
use super::create::labels;
use crate::auth::{self, Asker};
use crate::extras::{self, Extras, tags};
use crate::grpc::{Fault, Result};
use crate::ids::{self, Generation};
use crate::wire::common::Empty;
use crate::wire::sandboxes::{
    SandboxGetFromNameRequest, SandboxGetFromNameResponse, SandboxHandleMetadata, SandboxInfo,
    SandboxListRequest, SandboxListResponse, SandboxSetNameRequest, SandboxSetNameResponse, SandboxTag,
    SandboxTagsGetRequest, SandboxTagsGetResponse, SandboxTagsSetRequest, TaskInfo,
};

/// Sandboxes of a page. The clients ask for those made before the last one until a page is empty; they name only its
/// time, so a page has all that were made at that time.
pub(super) const PAGE: usize = 100;

/// Seconds since the epoch, as the protocol counts.
fn time(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

fn runs(record: &SandboxRecord) -> bool {
    // The sandboxes that build templates are not shown to clients.
    !matches!(record.state, SandboxState::Failed | SandboxState::Deleting) && record.spec.build.is_none()
}

/// `SandboxList`, of both generations.
pub(super) async fn list(
    asker: &Asker,
    request: SandboxListRequest,
    generation: Generation,
) -> Result<SandboxListResponse> {
    asker.needs(Scope::Read)?;
    let before = request.before_timestamp;
    let wanted: Vec<_> = request.tags.iter().map(|tag| (&tag.tag_name, &tag.tag_value)).collect();
    let matches = |record: &SandboxRecord| {
        let of_app = request.app_id.is_empty() || Extras::of(record).app == request.app_id;
        let own = tags(record);
        of_app
            && runs(record)
            && (before <= 0.0 || time(record.created_ms) < before)
            && wanted.iter().all(|(name, value)| own.get(*name) == Some(*value))
    };
    let query = SandboxQuery::default();
    let page = Page { limit: Some(PAGE), whole_times: true, ..Page::default() };
    let (found, _) = sandboxes::list(asker.engine(), query, &page, asker.caller(), matches).await?;
    let sandboxes = found.iter().map(|record| info(record, generation)).collect();
    Ok(SandboxListResponse { sandboxes })
}

fn info(record: &SandboxRecord, generation: Generation) -> SandboxInfo {
    let extras = Extras::of(record);
    let id = ids::sandbox(&record.id, generation);
    let created_at = time(record.created_ms);
    SandboxInfo {
        task_info: Some(TaskInfo {
            id: ids::task(&record.id, generation),
            started_at: created_at,
            finished_at: 0.0,
            result: None,
            sandbox_id: id.clone(),
        }),
        id,
        created_at,
        metadata: Some(SandboxHandleMetadata { result: None, app_id: extras.app.clone() }),
        app_id: extras.app,
        tags: pairs(tags(record)),
        name: extras::name(record).unwrap_or_default(),
        image_id: extras.image,
        timeout_secs: extras.timeout_s.unwrap_or_default(),
        idle_timeout_secs: record.spec.idle_timeout_ms.and_then(|ms| u32::try_from(ms / 1000).ok()),
    }
}

fn pairs(tags: BTreeMap<String, String>) -> Vec<SandboxTag> {
    tags.into_iter().map(|(tag_name, tag_value)| SandboxTag { tag_name, tag_value }).collect()
}

/// `SandboxGetFromName`, of both generations: finds a sandbox that runs.
pub(super) async fn from_name(
    asker: &Asker,
    request: SandboxGetFromNameRequest,
    generation: Generation,
) -> Result<SandboxGetFromNameResponse> {
    let name = request.sandbox_name;
    let missing =
        || Fault::not_found(format!("Sandbox with name '{}' not found", atoll_core::error::shorten(&name)));
    let label = extras::label(&name).map_err(|_no_name| missing())?;
    let grant = asker.grant(Needs::READ, Target::Sandbox(&label)).await.map_err(|_hidden| missing())?;
    let id = grant.sandbox().ok_or_else(missing)?;
    let record = asker.engine().sandbox(id).map_err(|_gone| missing())?;
    let extras = Extras::of(&record);
    // A sandbox of another API has no app: it counts as in every app.
    let of_app = extras.app.is_empty() || extras.app == app_id(&request.app_name);
    if extras::name(&record).as_ref() != Some(&name) || !runs(&record) || !of_app {
        return Err(missing());
    }
    Ok(SandboxGetFromNameResponse {
        sandbox_id: ids::sandbox(&record.id, generation),
        metadata: Some(SandboxHandleMetadata { result: None, app_id: extras.app }),
    })
}

/// `SandboxTagsGet`, of both generations.
pub(super) async fn tags_get(
    asker: &Asker,
    request: SandboxTagsGetRequest,
) -> Result<SandboxTagsGetResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Read).await?;
    let record = asker.engine().sandbox(&id)?;
    Ok(SandboxTagsGetResponse { tags: pairs(tags(&record)) })
}

/// `SandboxTagsSet`, of both generations: replaces all tags.
pub(super) async fn tags_set(asker: &Asker, request: SandboxTagsSetRequest) -> super::Done {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Manage).await?;
    let record = asker.engine().sandbox(&id)?;
    let tags: BTreeMap<String, String> =
        request.tags.into_iter().map(|tag| (tag.tag_name, tag.tag_value)).collect();
    let update = SandboxUpdate { labels: Some(labels(&tags)), ..SandboxUpdate::default() };
    let extras = Extras { tags: Some(tags), ..Extras::of(&record) };
    let annotations = BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]);
    asker.engine().update_sandbox(&id, SandboxUpdate { annotations, ..update }).await?;
    Ok(Empty {})
}

/// `SandboxSetName`.
pub(super) async fn set_name(
    asker: &Asker,
    request: SandboxSetNameRequest,
) -> Result<SandboxSetNameResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Manage).await?;
    let record = asker.engine().sandbox(&id)?;
    let label = extras::label(&request.name)?;
    let extras = Extras { name: Some(request.name), ..Extras::of(&record) };
    let annotations = BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]);
    let update = SandboxUpdate { name: Some(label), annotations, ..SandboxUpdate::default() };
    asker.engine().update_sandbox(&id, update).await?;
    Ok(SandboxSetNameResponse {})
}
