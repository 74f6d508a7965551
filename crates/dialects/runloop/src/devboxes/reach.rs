//! The hosts that a devbox may reach, and the variables that stand for secrets in it.
//!
//! | request | result |
//! |---|---|
//! | a network policy | the egress policy that it means |
//! | `secrets` | a variable with a placeholder, which the gateway replaces in requests to the hosts that the secret is for |
//! | `gateways` | a variable with a placeholder and one with the service's address; the gateway puts the secret in |
//!
//! [`atoll_dialect_kit::secrets`] says which hosts those are.

use std::collections::BTreeMap;

use atoll_core::policy::{EgressPolicy, InjectRule};
use atoll_dialect_kit::secrets as stand_ins;
use atoll_engine::{Caller as EngineCaller, Engine};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::policies::{self, NetworkPolicy};
use crate::request::Caller;
use crate::secrets;

/// A gateway and the secret for it, by ids or names.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct GatewaySpec {
    gateway: String,
    secret: String,
}

/// The policy, secrets and gateways that a client asks for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) policy: Option<String>,
    /// Secrets by the names of their variables.
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) gateways: BTreeMap<String, GatewaySpec>,
}

/// The settings that follow for the sandbox.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// `None` means the policy of the template or the server.
    pub(super) egress: Option<EgressPolicy>,
    pub(super) env: BTreeMap<String, String>,
    /// For answers, which say it back.
    pub(super) gateway_specs: Option<Value>,
}

impl Asked {
    /// # Errors
    /// 400.
    pub(super) async fn reach<S>(
        self,
        app: &App,
        caller: &Caller<S>,
        template: Option<&str>,
    ) -> Result<Reach> {
        let policy = policies::find(app, caller, self.policy.as_ref()).await?;
        if policy.is_none() && self.secrets.is_empty() && self.gateways.is_empty() {
            return Ok(Reach::default());
        }
        let mut reach = Reach::default();
        let mut egress = match &policy {
            Some(policy) => policy.egress()?,
            None => app.host.engine().egress_unless_told(caller.engine().project(), template).await?,
        };
        let rules = self.gateway_rules(app, caller, &mut reach).await?;
        if policy.as_ref().is_none_or(NetworkPolicy::admits_gateways) {
            stand_ins::open(&mut egress, &rules);
        }
        egress.inject.extend(rules);
        let rules = self.secret_rules(app.host.engine(), caller.engine(), &egress)?;
        if policy.is_none() {
            stand_ins::open(&mut egress, &rules);
        }
        egress.inject.extend(rules);
        reach.egress = Some(egress);
        Ok(reach)
    }

    async fn gateway_rules<S>(
        &self,
        app: &App,
        caller: &Caller<S>,
        reach: &mut Reach,
    ) -> Result<Vec<InjectRule>> {
        let mut rules = Vec::new();
        let mut told = json!({});
        for (prefix, spec) in &self.gateways {
            let gateway = app.gateways.named(caller, &spec.gateway).await.map_err(Failure::of_body)?;
            let secret =
                secrets::find(app.host.engine(), caller.engine(), &spec.secret).map_err(Failure::of_body)?;
            let (rule, address) = gateway.what.rule(app, caller.engine(), prefix, &secret.name)?;
            rules.push(rule);
            reach.env.insert(format!("{prefix}_URL"), address);
            told[prefix] = json!({"gateway_config_id": gateway.id, "secret_id": secrets::id(&secret)});
        }
        reach.gateway_specs = (!rules.is_empty()).then_some(told);
        Ok(rules)
    }

    fn secret_rules(
        &self,
        engine: &Engine,
        caller: &EngineCaller,
        egress: &EgressPolicy,
    ) -> Result<Vec<InjectRule>> {
        let mut rules = Vec::new();
        for (variable, named) in &self.secrets {
            let secret = secrets::find(engine, caller, named).map_err(Failure::of_body)?;
            let (field, name) = (format!("secrets.{variable}"), format!("runloop-secret-{variable}"));
            rules.push(stand_ins::rule(&field, &name, variable, &secret, egress)?);
        }
        Ok(rules)
    }
}
