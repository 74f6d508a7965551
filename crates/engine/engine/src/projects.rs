//! Projects: keys and what they make, apart from those of other projects. [`crate::authorize`] decides which caller
//! sees what; here are the projects themselves, which every request may ask for, so all of them are in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::error::shorten;
use atoll_core::id::ProjectId;
use atoll_core::project::{PROJECTS_MAX_COUNT, ProjectDefaults, Quota, QuotaUsed, kept_name, validate_name};
use atoll_core::{Code, Error, Result};
use atoll_store::{Belongings, ProjectRecord, Store, StoreError};

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

/// Every project.
#[derive(Debug, Default)]
pub(crate) struct Projects {
    by_id: RwLock<BTreeMap<ProjectId, Arc<ProjectRecord>>>,
    /// Changes come one after the other: what is in memory follows what is stored.
    changing: tokio::sync::Mutex<()>,
}

impl Projects {
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let projects = Self::default();
        projects.replace(store.list_projects().await.map_err(store_error)?);
        Ok(projects)
    }

    fn replace(&self, records: Vec<ProjectRecord>) {
        let new = records.into_iter().map(|record| (record.id.clone(), Arc::new(record))).collect();
        *self.by_id.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    pub(crate) fn get(&self, id: &ProjectId) -> Option<Arc<ProjectRecord>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<ProjectRecord>> {
        let all = self.by_id.read().unwrap_or_else(PoisonError::into_inner);
        all.values().find(|record| record.name == name).cloned()
    }

    fn all(&self) -> Vec<Arc<ProjectRecord>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// A change of a project. A field that is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectUpdate {
    /// Its name.
    pub name: Option<String>,
    /// The whole quota.
    pub quota: Option<Quota>,
    /// All defaults.
    pub defaults: Option<ProjectDefaults>,
}

/// A project, and how much it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectView {
    /// The record.
    pub record: ProjectRecord,
    /// How much of its quota it has.
    pub used: QuotaUsed,
    /// What belongs to it.
    pub belongings: Belongings,
}

fn not_found(text: &str) -> Error {
    ProjectId::not_found(text).hint("'atoll project ls' shows what there is")
}

fn name_taken(name: &str) -> Error {
    Error::new(Code::NameTaken, format!("another project is named '{}'", shorten(name)))
        .hint("choose another name")
}

/// The error of storing something that belongs to a project: that may have been removed at the same moment.
pub(crate) fn stored_in(project: Option<&ProjectId>, error: StoreError) -> Error {
    match (error, project) {
        (StoreError::NotFound, Some(project)) => not_found(project.as_str()),
        (error, _) => store_error(error),
    }
}

impl Caller {
    /// A name as it is kept where names are unique: in the caller's project. An id stays what it is.
    pub(crate) fn kept(&self, id_or_name: &str) -> String {
        if atoll_core::id::is_id_shaped(id_or_name) {
            return id_or_name.to_owned();
        }
        kept_name(self.project(), id_or_name)
    }
}

impl Engine {
    /// Makes a project.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field; [`Code::NameTaken`]; [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_project(
        &self,
        name: &str,
        quota: Quota,
        defaults: ProjectDefaults,
    ) -> Result<ProjectRecord> {
        validate_name(name)?;
        defaults.validate(&self.inner.config.caps)?;
        self.refuse_beside_other_versions().await?;
        let created_ms = self.inner.now_ms();
        let id = ProjectId::from_parts(created_ms, random()?);
        let record = ProjectRecord { id, name: name.to_owned(), quota, defaults, created_ms };
        let _turn = self.inner.projects.changing.lock().await;
        let stored = self.inner.store.insert_project(&record, PROJECTS_MAX_COUNT as u64).await;
        stored.map_err(|error| match error {
            StoreError::NameTaken => name_taken(name),
            StoreError::Conflict => {
                Error::new(Code::LimitExceeded, format!("there are {PROJECTS_MAX_COUNT} projects already"))
                    .hint("remove some")
            }
            error => store_error(error),
        })?;
        self.read_projects().await?;
        Ok(record)
    }

    /// Every project, by age.
    #[must_use]
    pub fn projects(&self) -> Vec<Arc<ProjectRecord>> {
        self.inner.projects.all()
    }

    /// The project with this id or name.
    ///
    /// # Errors
    /// [`Code::ProjectNotFound`].
    pub fn project(&self, id_or_name: &str) -> Result<Arc<ProjectRecord>> {
        let projects = &self.inner.projects;
        let found = match id_or_name.parse() {
            Ok(id) => projects.get(&id),
            Err(_) => projects.named(id_or_name),
        };
        found.ok_or_else(|| self.inner.absent("projects", id_or_name, not_found(id_or_name)))
    }

    /// The project that a caller, or what it makes, belongs to, with the settings that hold there. Nothing for no project:
    /// a project whose row cannot be read is not one without settings.
    ///
    /// # Errors
    /// [`Code::RecordUnreadable`]; [`Code::ProjectNotFound`] when it was removed at the same moment.
    pub(crate) fn settings_of(&self, project: Option<&ProjectId>) -> Result<Option<Arc<ProjectRecord>>> {
        project.map(|id| self.project(id.as_str())).transpose()
    }

    /// The same, if a caller may know of it: an administrator, or a key of that project.
    ///
    /// # Errors
    /// [`Code::ProjectNotFound`].
    pub fn seen_project(&self, id_or_name: &str, caller: &Caller) -> Result<Arc<ProjectRecord>> {
        match self.project(id_or_name) {
            Err(error) if caller.is_admin() => Err(error),
            Ok(found) if caller.is_admin() || caller.project() == Some(&found.id) => Ok(found),
            Ok(_) | Err(_) => Err(not_found(id_or_name)),
        }
    }

    /// The project in which a caller looks for what is named: one that it says, or else its own.
    ///
    /// # Errors
    /// [`Code::ProjectNotFound`].
    pub fn project_for(&self, said: Option<&str>, caller: &Caller) -> Result<Option<ProjectId>> {
        match said {
            Some(text) => Ok(Some(self.seen_project(text, caller)?.id.clone())),
            None => Ok(caller.project().cloned()),
        }
    }

    /// What people call a project; its id when it is gone.
    #[must_use]
    pub fn project_name(&self, id: &ProjectId) -> String {
        self.inner.projects.get(id).map_or_else(|| id.to_string(), |record| record.name.clone())
    }

    /// How much a project has.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn project_view(&self, record: &ProjectRecord) -> Result<ProjectView> {
        let store = &self.inner.store;
        let used = store.quota_used(&record.id).await.map_err(store_error)?;
        let belongings = store.belongings(&record.id).await.map_err(store_error)?;
        Ok(ProjectView { record: record.clone(), used, belongings })
    }

    /// Changes a project. A quota that is below what there is takes nothing away: nothing more comes until there is less.
    ///
    /// # Errors
    /// As [`Self::create_project`]; [`Code::ProjectNotFound`].
    #[boxed]
    pub async fn update_project(&self, id_or_name: &str, update: ProjectUpdate) -> Result<ProjectRecord> {
        let _turn = self.inner.projects.changing.lock().await;
        let mut record = ProjectRecord::clone(&*self.project(id_or_name)?);
        if let Some(name) = update.name {
            validate_name(&name)?;
            record.name = name;
        }
        record.quota = update.quota.unwrap_or(record.quota);
        if let Some(defaults) = update.defaults {
            defaults.validate(&self.inner.config.caps)?;
            record.defaults = defaults;
        }
        self.inner.store.update_project(&record).await.map_err(|error| match error {
            StoreError::NameTaken => name_taken(&record.name),
            StoreError::NotFound => not_found(id_or_name),
            error => store_error(error),
        })?;
        self.read_projects().await?;
        Ok(record)
    }

    /// Removes a project to which nothing belongs.
    ///
    /// # Errors
    /// [`Code::ProjectNotFound`]; [`Code::ProjectInUse`], which counts what belongs to it.
    #[boxed]
    pub async fn delete_project(&self, id_or_name: &str) -> Result<()> {
        let _turn = self.inner.projects.changing.lock().await;
        let record = self.project(id_or_name)?;
        let belongs = match self.inner.store.delete_project(&record.id).await {
            Err(StoreError::NotFound) => return Err(not_found(id_or_name)),
            other => other.map_err(store_error)?,
        };
        if !belongs.is_empty() {
            let Belongings { keys, sandboxes, snapshots, volumes, secrets } = belongs;
            let why = format!(
                "to the project '{}' belong {keys} keys, {sandboxes} sandboxes, {snapshots} snapshots, {volumes} volumes and \
                 {secrets} secrets",
                record.name
            );
            return Err(Error::new(Code::ProjectInUse, why).hint("remove these first"));
        }
        self.read_projects().await
    }

    /// Takes up what other nodes changed.
    pub(crate) async fn reload_projects(&self) -> Result<()> {
        let _turn = self.inner.projects.changing.lock().await;
        self.read_projects().await
    }

    async fn read_projects(&self) -> Result<()> {
        self.inner.projects.replace(self.inner.store.list_projects().await.map_err(store_error)?);
        // The name of a project in the login rules may mean another project now.
        self.inner.acl.keys_changed();
        Ok(())
    }

    /// Refuses a caller of a project a change of what all projects use together.
    ///
    /// # Errors
    /// [`Code::Forbidden`].
    pub fn check_common(&self, caller: &Caller) -> Result<()> {
        let Some(project) = caller.project() else { return Ok(()) };
        let project = self.project_name(project);
        let why =
            format!("the API key belongs to the project '{project}', and this changes what all projects use");
        Err(Error::new(Code::Forbidden, why)
            .hint("templates, builds, images and pools are changed with a key of no project"))
    }
}
