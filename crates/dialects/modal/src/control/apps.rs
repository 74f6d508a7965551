//! Apps and environments: names under which clients find sandboxes again. The server keeps none: an app is its id,
//! which follows from its name, and every name is valid.

use crate::auth::{Asker, empty_token};
use crate::grpc::{Fault, Result};
use crate::wire::apps::{
    AppCreateRequest, AppCreateResponse, AppGetOrCreateRequest, AppGetOrCreateResponse, AppHandleMetadata,
    AuthTokenGetResponse, ClientHelloResponse, EnvironmentGetOrCreateRequest, EnvironmentGetOrCreateResponse,
    EnvironmentMetadata, EnvironmentSettings,
};
use crate::wire::common::Empty;

use super::{Done, id_of};

/// The way in which clients write Dockerfiles: the newest stable one.
pub(super) const BUILDER_VERSION: &str = "2025.06";
/// The environment of requests that name none.
const ENVIRONMENT: &str = "main";
/// Names have this many bytes at most.
const NAME_MAX_BYTES: usize = 255;

/// The id of an app.
pub(super) fn app_id(name: &str) -> String {
    id_of("ap", "atoll modal app id", &[name])
}

pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
        return Err(Fault::invalid(format!(
            "{what}: must have 1 to {NAME_MAX_BYTES} bytes that can be shown"
        )));
    }
    Ok(())
}

/// `ClientHello`.
pub(super) async fn hello(_: &Asker, _: Empty) -> Result<ClientHelloResponse> {
    Ok(ClientHelloResponse { warning: String::new(), image_builder_version: BUILDER_VERSION.to_owned() })
}

/// `AuthTokenGet`.
pub(super) async fn auth_token(_: &Asker, _: Empty) -> Result<AuthTokenGetResponse> {
    Ok(AuthTokenGetResponse { token: empty_token() })
}

/// Calls that need no work.
pub(super) async fn ignored(_: &Asker, _: Empty) -> Done {
    Ok(Empty {})
}

/// `AppGetOrCreate`.
pub(super) async fn get_or_create(
    _: &Asker,
    request: AppGetOrCreateRequest,
) -> Result<AppGetOrCreateResponse> {
    check_name("app_name", &request.app_name)?;
    let id = app_id(&request.app_name);
    let environment = match request.environment_name.as_str() {
        "" => ENVIRONMENT,
        name => name,
    };
    let handle_metadata = AppHandleMetadata {
        description: request.app_name,
        app_id: id.clone(),
        environment_name: environment.to_owned(),
    };
    Ok(AppGetOrCreateResponse { app_id: id, handle_metadata: Some(handle_metadata) })
}

/// `AppCreate`: an app that lives as long as the client's program.
pub(super) async fn create(_: &Asker, request: AppCreateRequest) -> Result<AppCreateResponse> {
    Ok(AppCreateResponse { app_id: app_id(&request.description) })
}

/// `EnvironmentGetOrCreate`.
pub(super) async fn environment(
    _: &Asker,
    request: EnvironmentGetOrCreateRequest,
) -> Result<EnvironmentGetOrCreateResponse> {
    let name = match request.deployment_name.as_str() {
        "" => ENVIRONMENT,
        name => {
            check_name("deployment_name", name)?;
            name
        }
    };
    let settings = EnvironmentSettings { image_builder_version: BUILDER_VERSION.to_owned() };
    let metadata = EnvironmentMetadata { name: name.to_owned(), settings: Some(settings) };
    let environment_id = id_of("en", "atoll modal environment id", &[name]);
    Ok(EnvironmentGetOrCreateResponse { environment_id, metadata: Some(metadata) })
}
