//! Projects: keys and what they make, apart from other projects, with quotas and defaults of their own.
//!
//! A key belongs to one project or to none. What a key makes belongs to the key's project for good; [`crate::sharing`]
//! says which keys may use it. Keys and sandboxes in no project are apart from all projects, as if they were in one
//! without a quota.
//!
//! Names are unique within a project. The store keeps a name behind the id of its project ([`kept_name`]). So two
//! projects may use the same name, and code that compares names need not know of projects.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::ProjectId;
use crate::policy::EgressPolicy;
use crate::sharing::Visibility;
use crate::spec::{self, Caps, IsolationLevel, Resources, ResourcesDraft, SandboxDraft, TemplateSpec};

/// Projects of one installation.
pub const PROJECTS_MAX_COUNT: usize = 1000;
/// Stands between a project and a name. No name has it.
const SEPARATOR: char = '/';

/// A name as it is kept: two projects may use the same.
#[must_use]
pub fn kept_name(project: Option<&ProjectId>, name: &str) -> String {
    match project {
        Some(project) => format!("{project}{SEPARATOR}{name}"),
        None => name.to_owned(),
    }
}

/// The name that is kept so.
#[must_use]
pub fn plain_name(kept: &str) -> &str {
    kept.rsplit_once(SEPARATOR).map_or(kept, |(_, name)| name)
}

/// How much a project may have. What is absent has no limit of the project's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Quota {
    /// Sandboxes that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u64>,
    /// Sandboxes that run: all but those that are paused or have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// The CPU limits of those that run together, thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// The memory limits of those that run together, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The disk limits of those that exist together, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// How much of its quota a project has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QuotaUsed {
    /// See [`Quota::sandboxes`].
    pub sandboxes: u64,
    /// See [`Quota::running`].
    pub running: u64,
    /// See [`Quota::cpu_millis`].
    pub cpu_millis: u64,
    /// See [`Quota::memory_bytes`].
    pub memory_bytes: u64,
    /// See [`Quota::disk_bytes`].
    pub disk_bytes: u64,
}

impl Quota {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses a change that makes more of something than there may be. What is above its limit already, since that was
    /// lowered, may stay so, or become less.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], which says of what, how much there is, and what to do.
    pub fn check(&self, project: &str, before: &QuotaUsed, after: &QuotaUsed) -> Result<()> {
        const WAKE: &str = "pause or delete some";
        let lines = [
            ("sandboxes", self.sandboxes, before.sandboxes, after.sandboxes, "delete some", plain as Shown),
            ("running sandboxes", self.running, before.running, after.running, WAKE, plain),
            ("CPUs of running sandboxes", self.cpu_millis, before.cpu_millis, after.cpu_millis, WAKE, cpus),
            (
                "memory of running sandboxes",
                self.memory_bytes,
                before.memory_bytes,
                after.memory_bytes,
                WAKE,
                bytes,
            ),
            ("disk of sandboxes", self.disk_bytes, before.disk_bytes, after.disk_bytes, "delete some", bytes),
        ];
        for (what, limit, before, after, todo, shown) in lines {
            let Some(limit) = limit.filter(|limit| after > *limit && after > before) else { continue };
            let (limit, has, wants) = (shown(limit), shown(before), shown(after - before));
            let why =
                format!("the project '{project}' has {has} of {limit} ({what}), and this needs {wants} more");
            return Err(Error::new(Code::QuotaExceeded, why).hint(format!(
                "{todo}, or let an administrator raise the quota: 'atoll project set {project}'"
            )));
        }
        Ok(())
    }
}

type Shown = fn(u64) -> String;

fn plain(count: u64) -> String {
    count.to_string()
}

fn cpus(millis: u64) -> String {
    match (millis / 1000, millis % 1000) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part:03}").trim_end_matches('0').to_owned(),
    }
}

fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(size, _)| count >= *size && count.is_multiple_of(*size));
    unit.map_or_else(|| format!("{count} B"), |(size, name)| format!("{} {name}", count / size))
}

/// What sandboxes of a project are when neither caller nor template says: before the server's own defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProjectDefaults {
    /// The image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The isolation level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationLevel>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Whether the other keys of the project see a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Delete it this long after creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Delete it after this long without a running exec or a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// What it may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
}

impl ProjectDefaults {
    /// Checks everything that a sandbox would be refused for.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(&self, caps: &Caps) -> Result<()> {
        if let Some(egress) = &self.egress {
            egress.check_no_execs("defaults.egress")?;
        }
        let sandbox = SandboxDraft {
            image: self.image.clone(),
            ttl_ms: self.ttl_ms,
            idle_timeout_ms: self.idle_timeout_ms,
            egress: self.egress.clone(),
            ..SandboxDraft::default()
        };
        sandbox.validate()?;
        self.resources.over(Resources::default()).validate(caps)
    }

    /// Fills what neither a draft nor its template says. What goes on from a snapshot has image, isolation level and limits
    /// of that. Visibility is left alone: that of what it goes on from comes first.
    pub fn fill(&self, draft: &mut SandboxDraft, template: Option<&TemplateSpec>) {
        let said = |own: bool, theirs: fn(&TemplateSpec) -> bool| own || template.is_some_and(theirs);
        if !said(draft.snapshot.is_some(), |t| t.snapshot.is_some()) {
            if draft.image.is_none() && template.is_none() {
                draft.image.clone_from(&self.image);
            }
            if !said(draft.isolation.is_some(), |t| t.isolation.is_some()) {
                draft.isolation = self.isolation;
            }
            let of_template = template.map(|t| t.resources).unwrap_or_default();
            draft.resources = draft.resources.or(of_template).or(self.resources);
        }
        if !said(draft.ttl_ms.is_some(), |t| t.ttl_ms.is_some()) {
            draft.ttl_ms = self.ttl_ms;
        }
        if !said(draft.idle_timeout_ms.is_some(), |t| t.idle_timeout_ms.is_some()) {
            draft.idle_timeout_ms = self.idle_timeout_ms;
        }
        if !said(draft.egress.is_some(), |t| t.egress.is_some()) {
            draft.egress.clone_from(&self.egress);
        }
    }
}

/// Checks the name of a project.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the field.
pub fn validate_name(name: &str) -> Result<()> {
    spec::name("name", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_two_projects_are_kept_apart() {
        let [one, other] = [ProjectId::from_parts(1, 1), ProjectId::from_parts(2, 2)];
        let kept = [kept_name(Some(&one), "web"), kept_name(Some(&other), "web"), kept_name(None, "web")];
        assert!(kept[0] != kept[1] && kept[1] != kept[2] && kept[2] == "web");
        assert!(kept.iter().all(|kept| plain_name(kept) == "web"));
        // A kept name of a project is no valid name: no caller can use it.
        assert!(spec::name("name", &kept[0]).is_err() && validate_name(one.as_str()).is_err());
    }

    #[test]
    fn a_quota_says_of_what_how_much_and_what_to_do() {
        let used = |sandboxes, memory_bytes| QuotaUsed { sandboxes, memory_bytes, ..QuotaUsed::default() };
        let quota = Quota { sandboxes: Some(3), memory_bytes: Some(4 << 30), ..Quota::default() };
        assert!(quota.check("a", &used(2, 1 << 30), &used(3, 4 << 30)).is_ok(), "up to the edge");
        let error = quota.check("a", &used(3, 0), &used(4, 0)).unwrap_err();
        assert_eq!(error.code, Code::QuotaExceeded);
        assert_eq!(error.message, "the project 'a' has 3 of 3 (sandboxes), and this needs 1 more");
        assert!(error.hint.unwrap().contains("atoll project set a"));
        let error = quota.check("a", &used(1, 3 << 30), &used(1, (4 << 30) + (512 << 20))).unwrap_err();
        assert_eq!(
            error.message,
            "the project 'a' has 3 GiB of 4 GiB (memory of running sandboxes), and this needs 1536 MiB more"
        );
        // A quota that was lowered takes nothing away.
        assert!(quota.check("a", &used(5, 9 << 30), &used(5, 8 << 30)).is_ok());
        assert!(Quota::default().check("a", &used(0, 0), &used(u64::MAX, u64::MAX)).is_ok());
        assert_eq!((cpus(2000), cpus(1500), cpus(50)), ("2".into(), "1.5".into(), "0.05".into()));
    }

    #[test]
    fn defaults_fill_what_nobody_says() {
        let defaults = ProjectDefaults {
            image: Some("python:3".into()),
            isolation: Some(IsolationLevel::Gvisor),
            resources: ResourcesDraft {
                memory_bytes: Some(1 << 30),
                pids: Some(64),
                ..ResourcesDraft::default()
            },
            ttl_ms: Some(60_000),
            egress: Some(EgressPolicy::open()),
            ..ProjectDefaults::default()
        };
        defaults.validate(&Caps::default()).unwrap();
        let mut draft = SandboxDraft::default();
        defaults.fill(&mut draft, None);
        assert_eq!(
            (draft.image.as_deref(), draft.isolation),
            (Some("python:3"), Some(IsolationLevel::Gvisor))
        );
        assert_eq!((draft.resources.memory_bytes, draft.ttl_ms), (Some(1 << 30), Some(60_000)));
        assert!(draft.egress.is_some() && draft.visibility.is_none());
        let resources = ResourcesDraft { memory_bytes: Some(2 << 30), ..ResourcesDraft::default() };
        let mut said = SandboxDraft { resources, ttl_ms: Some(1), ..SandboxDraft::default() };
        defaults.fill(&mut said, None);
        assert_eq!((said.resources.memory_bytes, said.resources.pids), (Some(2 << 30), Some(64)));
        assert_eq!(said.ttl_ms, Some(1));
        let mut from = SandboxDraft { snapshot: Some("s".into()), ..SandboxDraft::default() };
        defaults.fill(&mut from, None);
        assert_eq!((from.image, from.isolation, from.resources), (None, None, ResourcesDraft::default()));
        let wrong = ProjectDefaults { ttl_ms: Some(0), ..defaults };
        assert!(wrong.validate(&Caps::default()).is_err());
    }
}
