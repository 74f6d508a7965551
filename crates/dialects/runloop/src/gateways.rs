//! Gateways: `/v1/gateway-configs`. A gateway says which service a credential is for, and where in a request it
//! belongs. A devbox that uses one gets the service's own address and a placeholder: the server's egress gateway puts
//! the secret into the requests.

use atoll_core::policy::{DomainPattern, InjectRule, Template};
use atoll_engine::Caller as EngineCaller;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use http::Uri;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Failure, Result};
use crate::records::api::{self, Api};
use crate::records::{Kind, Record, Records, check_words};
use crate::request::Manage;
use crate::{App, once, secrets};

/// Most further headers.
const HEADERS_MAX_COUNT: usize = 8;
/// Bytes of an address and of a header's value.
const TEXT_MAX_BYTES: usize = 2048;

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/gateway-configs", post(api::create::<Gateway>))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/gateway-configs", get(api::list::<Gateway>))
        .route("/v1/gateway-configs/{gateway}", get(api::one::<Gateway>).post(api::update::<Gateway>))
        .route("/v1/gateway-configs/{gateway}/delete", post(api::remove::<Gateway>))
}

/// A gateway.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Gateway {
    name: String,
    description: Option<String>,
    endpoint: String,
    auth_mechanism: Auth,
    custom_headers: Vec<Header>,
}

/// The place of the credential in a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Auth {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// A further header: with the value of a secret (by its id), or a plain value.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

impl Kind for Gateway {
    const WORD: &'static str = "Gateway config";
    const DIR: &'static str = "runloop-gateways";
    const PREFIX: &'static str = "gwc_";

    fn name(&self) -> &str {
        &self.name
    }
}

/// The parts of an endpoint.
struct Endpoint {
    host: DomainPattern,
    port: Option<u16>,
    path: Option<String>,
}

fn endpoint(text: &str) -> Result<Endpoint> {
    let wrong = |why: &str| Failure::bad(format!("endpoint: '{}' {why}", atoll_core::error::shorten(text)));
    if text.len() > TEXT_MAX_BYTES {
        return Err(wrong("is too long"));
    }
    let uri: Uri =
        text.parse().map_err(|_malformed| wrong("is no address such as https://api.example.com"))?;
    if uri.scheme_str() != Some("https") || text.contains('@') || uri.query().is_some() {
        return Err(wrong("must be https://HOST[:PORT][/PATH]: secrets travel encrypted only"));
    }
    let host = uri.host().and_then(|host| host.parse::<DomainPattern>().ok());
    let host = host.filter(|host| matches!(host, DomainPattern::Exact(_)));
    let host = host.ok_or_else(|| wrong("must have the name of a host"))?;
    let path = uri.path().trim_end_matches('/');
    Ok(Endpoint { host, port: uri.port_u16(), path: (!path.is_empty()).then(|| path.to_owned()) })
}

fn template(text: &str) -> Result<Template> {
    text.parse().map_err(|error: atoll_core::Error| Failure::of(&error))
}

impl Gateway {
    /// The rule for a devbox whose variables begin with `prefix`, and the address of the service.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn rule(
        &self,
        app: &App,
        caller: &EngineCaller,
        prefix: &str,
        secret: &str,
    ) -> Result<(InjectRule, String)> {
        let to = endpoint(&self.endpoint)?;
        let of_secret = format!("{{secret:{secret}}}");
        let mut placeholder = atoll_dialect_kit::secrets::placeholder(secret, prefix)?;
        let mut rule = InjectRule {
            name: format!("runloop-gateway-{prefix}"),
            hosts: vec![to.host],
            ports: to.port.into_iter().collect(),
            paths: to.path.into_iter().collect(),
            ..InjectRule::default()
        };
        match (self.auth_mechanism.kind.as_str(), &self.auth_mechanism.key) {
            ("bearer", None) => rule.bearer = Some(template(&of_secret)?),
            ("header", Some(name)) => {
                placeholder.headers.push(name.clone());
                rule.headers.insert(name.clone(), template(&of_secret)?);
            }
            ("header", None) => return Err(Failure::bad("auth_mechanism: header needs a key")),
            ("basic", _) => {
                return Err(Failure::unsupported(
                    "auth_mechanism: basic is not supported by this server; send the placeholder as the password, with bearer",
                ));
            }
            ("bearer", Some(_)) => return Err(Failure::bad("auth_mechanism: key is of header alone")),
            _ => return Err(Failure::bad("auth_mechanism.type: must be bearer or header")),
        }
        for header in &self.custom_headers {
            let value = match (&header.secret, &header.value) {
                (Some(id), None) => format!(
                    "{{secret:{}}}",
                    secrets::find(app.host.engine(), caller, id).map_err(Failure::of_body)?.name
                ),
                (None, Some(value)) if !value.contains("{secret:") => value.clone(),
                _ => return Err(Failure::bad("custom_headers: each has a secret or a value")),
            };
            rule.headers.insert(header.name.clone(), template(&value)?);
        }
        rule.placeholders.push(placeholder);
        atoll_core::policy::inject::validate("gateway", std::slice::from_ref(&rule))?;
        Ok((rule, self.endpoint.clone()))
    }

    /// Checks the gateway, and replaces the names of further headers' secrets by ids.
    fn check(&mut self, app: &App, caller: &EngineCaller) -> Result<()> {
        check_words(&self.name, self.description.as_deref())?;
        if self.custom_headers.len() > HEADERS_MAX_COUNT {
            return Err(Failure::bad(format!("custom_headers: at most {HEADERS_MAX_COUNT}")));
        }
        if self
            .custom_headers
            .iter()
            .filter_map(|header| header.value.as_ref())
            .any(|value| value.len() > TEXT_MAX_BYTES)
        {
            return Err(Failure::bad(format!("custom_headers: a value has at most {TEXT_MAX_BYTES} bytes")));
        }
        for header in &mut self.custom_headers {
            if let Some(named) = &header.secret {
                header.secret = Some(secrets::id(
                    &secrets::find(app.host.engine(), caller, named).map_err(Failure::of_body)?,
                ));
            }
        }
        self.rule(app, caller, "GATEWAY", "SECRET").map(drop)
    }
}

/// The settings that a client gives for a gateway. A setting that is absent stays.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    name: Option<String>,
    description: Option<String>,
    endpoint: Option<String>,
    auth_mechanism: Option<Auth>,
    custom_headers: Option<Vec<Header>>,
}

impl Api for Gateway {
    type Asked = Asked;
    const PLURAL: &'static str = "gateway_configs";

    fn records(app: &App) -> &Records<Self> {
        &app.gateways
    }

    fn apply(&mut self, asked: Asked, app: &App, caller: &EngineCaller) -> Result<()> {
        let known = self.clone();
        *self = Self {
            name: asked.name.unwrap_or(known.name),
            description: asked.description.or(known.description),
            endpoint: asked.endpoint.unwrap_or(known.endpoint),
            auth_mechanism: asked.auth_mechanism.unwrap_or(known.auth_mechanism),
            custom_headers: asked.custom_headers.unwrap_or(known.custom_headers),
        };
        self.check(app, caller)
    }

    fn view(record: &Record<Self>) -> Value {
        let gateway = &record.what;
        json!({
            "id": record.id,
            "name": gateway.name,
            "description": gateway.description,
            "endpoint": gateway.endpoint,
            "auth_mechanism": gateway.auth_mechanism,
            "custom_headers": gateway.custom_headers,
            "create_time_ms": record.created_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let of = |text: &str| endpoint(text).map(|to| (to.host.to_string(), to.port, to.path)).ok();
        assert_eq!(of("https://api.a.com"), Some(("api.a.com".into(), None, None)));
        let whole = Some(("api.a.com".into(), Some(8443), Some("/v1".into())));
        assert_eq!(of("https://api.a.com:8443/v1/"), whole);
        for bad in [
            "",
            "api.a.com",
            "http://a.com",
            "https://",
            "https://u:p@a.com",
            "https://a.com/?q=1",
            "https://*.a.com",
        ] {
            assert!(of(bad).is_none(), "{bad}");
        }
    }
}
