//! The routes, a file for each noun.

mod access;
mod agent_attach;
mod agent_schedules;
mod agent_sessions;
mod agents;
mod archive;
mod attach;
mod builds;
mod cells;
mod checkpoints;
mod cluster;
mod contexts;
mod dashboard;
mod events;
mod execs;
mod files;
mod find;
#[cfg(test)]
mod fuzz;
mod images;
mod keys;
mod live;
mod load;
pub(crate) mod login;
mod mcp;
mod network;
mod nodes;
mod output;
mod pause;
mod pools;
mod projects;
mod pull;
mod registries;
mod sandboxes;
mod secrets;
mod services;
mod sharing;
mod snapshot_files;
mod snapshots;
mod ssh;
mod stdin;
mod system;
mod template_tags;
mod templates;
mod trace;
mod tunnel;
mod upload;
mod usage;
mod volumes;
mod watch;

pub(crate) use files::read_path;
pub(crate) use system::{healthz, metrics_text, readyz};

use std::time::Duration;

use atoll_core::Result;
use axum::Router;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::bounds::WAIT;
use crate::dashboard::Doors;
use crate::dialect::{self, Mounts};
use crate::ingress;
use crate::middleware::{self, Around};
use crate::once;
use crate::shared::App;

/// Every operation, with its documentation.
pub(crate) fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::create_sandbox, sandboxes::list_sandboxes))
        .routes(routes!(sandboxes::create_sandboxes))
        .routes(routes!(sandboxes::get_sandbox, sandboxes::update_sandbox, sandboxes::delete_sandbox))
        .routes(routes!(sandboxes::get_metrics))
        .routes(routes!(network::get_network))
        .routes(routes!(pause::pause_sandbox))
        .routes(routes!(pause::resume_sandbox))
        .routes(routes!(usage::get_usage))
        .routes(routes!(access::list_ports))
        .routes(routes!(access::create_access, access::list_accesses))
        .routes(routes!(access::revoke_access))
        .routes(routes!(access::download_file))
        .routes(routes!(tunnel::open_tunnel))
        .routes(routes!(ssh::get_ssh))
        .routes(routes!(ssh::connect_ssh))
        .routes(routes!(ssh::add_ssh_key, ssh::list_ssh_keys))
        .routes(routes!(ssh::remove_ssh_key))
        .routes(routes!(sharing::get_sharing, sharing::set_visibility))
        .routes(routes!(sharing::put_grant, sharing::delete_grant))
        .routes(routes!(sharing::get_lease, sharing::take_lease, sharing::release_lease))
        .routes(routes!(execs::create_exec, execs::list_execs))
        .routes(routes!(execs::get_exec, execs::kill_exec))
        .routes(routes!(output::get_output))
        .routes(routes!(events::stream_output))
        .routes(routes!(attach::attach_exec))
        .routes(routes!(stdin::write_stdin))
        .routes(routes!(execs::signal_exec))
        .routes(routes!(execs::resize_exec))
        .routes(routes!(services::create_service, services::list_services))
        .routes(routes!(services::get_service, services::delete_service))
        .routes(routes!(services::restart_service))
        .routes(routes!(services::stop_service))
        .routes(routes!(services::get_service_log))
        .routes(routes!(contexts::create_context, contexts::list_contexts))
        .routes(routes!(contexts::get_context, contexts::delete_context))
        .routes(routes!(contexts::restart_context))
        .routes(routes!(contexts::interrupt_context))
        .routes(routes!(cells::run_cell, cells::list_cells))
        .routes(routes!(cells::get_cell))
        .routes(routes!(cells::interrupt_cell))
        .routes(routes!(cells::get_cell_events))
        .routes(routes!(cells::stream_cell_events))
        .routes(routes!(files::read_file, upload::write_file, files::remove_file))
        .routes(routes!(files::stat_file))
        .routes(routes!(files::list_files))
        .routes(routes!(find::find_files))
        .routes(routes!(files::make_directory))
        .routes(routes!(files::move_file))
        .routes(routes!(files::change_mode))
        .routes(routes!(archive::read_archive, archive::write_archive))
        .routes(routes!(watch::watch_files))
        .routes(routes!(trace::get_events))
        .routes(routes!(trace::verify_events))
        .routes(routes!(trace::stream_all))
        .routes(routes!(agents::create_agent, agents::list_agents))
        .routes(routes!(agents::get_agent, agents::delete_agent))
        .routes(routes!(agents::update_agent))
        .routes(routes!(agents::fork_agent))
        .routes(routes!(agent_sessions::create_agent_session, agent_sessions::list_agent_sessions))
        .routes(routes!(agent_sessions::get_agent_session, agent_sessions::delete_agent_session))
        .routes(routes!(agent_sessions::send_agent_message))
        .routes(routes!(agent_sessions::cancel_agent_session))
        .routes(routes!(agent_sessions::answer_approval))
        .routes(routes!(agent_sessions::get_agent_events))
        .routes(routes!(agent_sessions::stream_agent_events))
        .routes(routes!(agent_attach::attach_agent_session))
        .routes(routes!(agent_schedules::create_agent_schedule, agent_schedules::list_agent_schedules))
        .routes(routes!(agent_schedules::get_agent_schedule, agent_schedules::delete_agent_schedule))
        .routes(routes!(snapshots::create_snapshot))
        .routes(routes!(snapshots::list_snapshots))
        .routes(routes!(snapshots::get_snapshot, snapshots::delete_snapshot))
        .routes(routes!(snapshots::tag_snapshot))
        .routes(routes!(snapshot_files::import_snapshot))
        .routes(routes!(snapshot_files::pull_snapshot))
        .routes(routes!(snapshot_files::push_snapshot))
        .routes(routes!(snapshot_files::export_snapshot))
        .routes(routes!(checkpoints::create_checkpoint, checkpoints::list_checkpoints))
        .routes(routes!(checkpoints::delete_checkpoint))
        .routes(routes!(checkpoints::fork_sandbox))
        .routes(routes!(checkpoints::rollback_sandbox))
        .routes(routes!(checkpoints::diff_sandbox))
        .routes(routes!(templates::create_template, templates::list_templates))
        .routes(routes!(templates::get_template, templates::delete_template))
        .routes(routes!(template_tags::list_template_tags))
        .routes(routes!(template_tags::list_tag_assignments))
        .routes(routes!(template_tags::set_template_tag, template_tags::delete_template_tag))
        .routes(routes!(builds::create_build, builds::list_builds))
        .routes(routes!(builds::get_build))
        .routes(routes!(builds::put_build_context))
        .routes(routes!(builds::cancel_build))
        .routes(routes!(builds::get_build_log))
        .routes(routes!(builds::stream_build_log))
        .routes(routes!(builds::list_build_cache))
        .routes(routes!(builds::prune_build_cache))
        .routes(routes!(pools::list_pools, pools::put_pool, pools::delete_pool))
        .routes(routes!(volumes::create_volume, volumes::list_volumes))
        .routes(routes!(volumes::get_volume, volumes::delete_volume))
        .routes(routes!(volumes::read_volume_file, volumes::write_volume_file, volumes::remove_volume_file))
        .routes(routes!(volumes::stat_volume_file))
        .routes(routes!(volumes::list_volume_files))
        .routes(routes!(images::list_images))
        .routes(routes!(pull::pull_image))
        .routes(routes!(load::load_images))
        .routes(routes!(load::import_image))
        .routes(routes!(images::prune_images))
        .routes(routes!(images::remove_image))
        .routes(routes!(registries::list_registries))
        .routes(routes!(registries::put_registry, registries::delete_registry))
        .routes(routes!(secrets::list_secrets))
        .routes(routes!(secrets::get_secret, secrets::put_secret, secrets::delete_secret))
        .routes(routes!(secrets::list_secret_uses))
        .routes(routes!(secrets::rotate_vault_key))
        .routes(routes!(projects::create_project, projects::list_projects))
        .routes(routes!(projects::get_project, projects::update_project, projects::delete_project))
        .routes(routes!(keys::create_key, keys::list_keys))
        .routes(routes!(keys::delete_key))
        .routes(routes!(keys::end_logins))
        .routes(routes!(live::get_live_usage))
        .routes(routes!(login::begin_device_login))
        .routes(routes!(login::poll_device_login))
        .routes(routes!(login::end_login))
        .routes(routes!(dashboard::create_dashboard_link))
        .routes(routes!(nodes::list_nodes))
        .routes(routes!(nodes::get_node, nodes::update_node, nodes::delete_node))
        .routes(routes!(nodes::get_node_drain))
        .routes(routes!(system::get_info))
        .routes(routes!(system::run_doctor))
        .routes(routes!(cluster::run_cluster_doctor))
        .routes(routes!(system::list_leaks, system::remove_leaks))
        .routes(routes!(system::get_ca))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::get_prometheus))
        .routes(routes!(system::get_openapi))
}

/// The router, with everything around the handlers.
pub(crate) fn router(app: &App, mounts: Mounts) -> Router {
    let (router, _document) = documented().split_for_parts();
    let around = Around { app: app.clone(), dialect: None };
    let around = axum::middleware::from_fn_with_state(around, middleware::around);
    let native = router
        .route("/mcp", axum::routing::any(mcp::mcp))
        .fallback(middleware::route_not_found)
        .method_not_allowed_fallback(middleware::method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(app.clone(), once::once));
    let doors = Doors::new(app, &native, &around);
    let others = native
        .layer(around)
        .layer(axum::middleware::from_fn_with_state(app.clone(), ingress::intercept))
        .layer(axum::middleware::from_fn_with_state(mounts, dialect::claim))
        .with_state(app.clone());
    // A router of its own: layers come after routing, and a request keeps the parameters of every router it passed.
    let router = Router::new()
        .fallback_service(others)
        .layer(axum::middleware::from_fn_with_state(doors, crate::dashboard::intercept));
    let router = if app.engine.is_node() {
        router.layer(axum::middleware::from_fn_with_state(app.clone(), crate::cluster::pass_on))
    } else {
        router
    };
    router.layer(axum::middleware::map_request(crate::linger::linger))
}

/// How long a call may wait, from `wait_ms`.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`] over the limit.
fn wait(wait_ms: Option<u64>) -> Result<Duration> {
    let ms = WAIT.of(wait_ms).map_err(|error| error.hint("ask again when the wait is over"))?;
    Ok(Duration::from_millis(ms))
}
