//! The suite that every database must pass.
//!
//! [`run`] takes a way to open a fresh, empty database for each check and panics with the name of
//! what does not hold. It is a library, so that the same text judges SQLite in a file, SQLite in
//! memory, and PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a failed check is a panic")]

mod acme;
mod agents;
mod builds;
mod contexts;
mod execs;
mod ingress;
mod kept;
mod others;
mod projects;
mod sandboxes;
mod secrets;
mod services;
mod shared_images;
mod snapshots;
mod unreadable;
mod usage;

pub use snapshots::snapshot;

use std::collections::BTreeMap;

use atoll_core::exec::ExecState;
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{
    Base, Caps, Command, ExecDraft, ExecSpec, ImageDefaults, IsolationLevel, SandboxDraft, SandboxSpec,
};

use crate::{ExecRecord, SandboxRecord, Store};

/// Runs every check. `fresh` opens an empty database each time.
///
/// # Panics
/// When a check fails.
pub async fn run(fresh: impl AsyncFn() -> Store) {
    macro_rules! each {
        ($($module:ident::$check:ident),* $(,)?) => {
            $({
                let store = fresh().await;
                $module::$check(&store).await;
                store.close().await;
            })*
        };
    }
    each!(
        sandboxes::round_trip,
        sandboxes::names_are_unique,
        sandboxes::changes_need_the_generation,
        sandboxes::states_change_only_from_expected_ones,
        sandboxes::racing_changes_have_one_winner,
        sandboxes::lists_filter,
        sandboxes::lists_page_without_gaps,
        sandboxes::hostile_texts,
        execs::round_trip,
        execs::idempotency,
        execs::racing_inserts_yield_one_row,
        execs::life,
        execs::loss,
        execs::lists_and_pruning,
        execs::one_failure_does_not_touch_the_others,
        agents::sessions,
        agents::events,
        agents::schedules,
        builds::life,
        builds::cache,
        builds::template_tags,
        snapshots::tags_move,
        snapshots::checkpoints_are_numbered,
        snapshots::rollbacks_are_remembered,
        others::templates_count_versions,
        others::racing_templates_get_distinct_versions,
        others::keys,
        others::people,
        others::registries,
        secrets::versions,
        secrets::those_of_a_sandbox_go_with_it,
        secrets::sealed_values_change_where_they_are,
        secrets::uses,
        services::life,
        shared_images::life,
        acme::a_state_is_changed_by_one,
        contexts::life,
        others::access,
        others::volumes,
        usage::usage_adds_up,
        usage::pauses,
        ingress::accesses,
        ingress::ssh_keys,
        kept::uploads,
        kept::what_is_kept_is_so_until_it_is_woken,
        kept::memory_that_may_have_gone_on_counts_no_more,
        others::pools,
        projects::life,
        projects::names_and_lists_are_apart,
        projects::quotas_hold,
        projects::racing_creations_keep_to_the_quota,
        unreadable::every_list_goes_on_without_them,
        unreadable::a_list_of_all_forgets_what_was_mended,
        unreadable::looking_one_up_is_no_absence,
        unreadable::what_closes_stays_closed,
        unreadable::readers_of_events_get_past_them,
        unreadable::rows_without_a_time_are_in_no_page_and_told_of,
        unreadable::a_login_needs_no_other_row,
    );
}

/// A sandbox made at `ms`; `n` tells those of one moment apart.
#[must_use]
pub fn sandbox(ms: u64, n: u64) -> SandboxRecord {
    let spec = SandboxSpec::resolve(
        &SandboxDraft::default(),
        None,
        Base::Image {
            name: "host",
            defaults: &ImageDefaults::default(),
            isolation: IsolationLevel::Container,
        },
        &Caps::default(),
    );
    SandboxRecord {
        id: SandboxId::from_parts(ms, n),
        name: None,
        project: None,
        state: SandboxState::Creating,
        reason: None,
        spec: spec.unwrap(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        image_digest: None,
        owner: None,
        request: None,
        created_ms: ms,
        expires_ms: None,
        last_active_ms: ms,
        paused: None,
        paused_ms: None,
        pauses_ms: 0,
        boot_id: "boot".to_owned(),
        kept_ms: None,
        memory_used: false,
        restored: None,
        generation: 1,
    }
}

/// An exec of `sandbox` made at `ms`; `n` tells those of one moment apart.
#[must_use]
pub fn exec(sandbox: &SandboxRecord, ms: u64, n: u64) -> ExecRecord {
    let draft = ExecDraft::new(Command::Argv(vec!["true".to_owned()]));
    ExecRecord {
        id: ExecId::from_parts(ms, n),
        sandbox: sandbox.id.clone(),
        idempotency_key: None,
        request_digest: "digest".to_owned(),
        spec: ExecSpec::resolve(draft, &sandbox.spec).unwrap(),
        state: ExecState::Starting,
        pid: None,
        exit: None,
        output_bytes: 0,
        cpu_us: 0,
        pauses_before_ms: 0,
        started_by: None,
        created_ms: ms,
        ended_ms: None,
    }
}
