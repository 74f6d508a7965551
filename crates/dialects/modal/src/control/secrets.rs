//! Secrets: variables for commands. Newer clients send them with each call. Older clients make them first, and name
//! them then: these secrets wait in memory for as long as a program may need them, each for its sender only.
//!
//! A secret that a client asks for by its name alone is a secret of the installation. Its value never enters a sandbox:
//! the variable holds a placeholder (see [`atoll_dialect_kit::secrets`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::key::Scope;
use atoll_core::policy::EgressPolicy;
use atoll_core::secret::Secret;
use atoll_dialect_kit::kept::Kept;
use atoll_dialect_kit::once::Limits;
use atoll_dialect_kit::secrets as stand_ins;
use atoll_dialect_kit::status::Status;

use crate::auth::Asker;
use crate::grpc::{Fault, Result};
use crate::wire::apps::{SecretGetOrCreateRequest, SecretGetOrCreateResponse, SecretMetadata};
use crate::wire::common::SecretSource;

/// Secrets that wait. Of what is too much, the oldest of a key go.
const LIMITS: Limits = Limits {
    kept_ms: 24 * 3600 * 1000,
    of_key: 1000,
    all: 10_000,
    bytes_of_key: 4 << 20,
    bytes_all: 64 << 20,
};
/// Most bytes of one.
const SECRET_MAX_BYTES: usize = 256 << 10;
/// Bytes that a variable takes beside its name and its value, about: many small ones take more than they say.
const VARIABLE_BYTES: usize = 128;

#[derive(Debug)]
enum What {
    Values(BTreeMap<String, Secret>),
    /// A secret of the installation, and the variable that stands for it.
    Named {
        secret: String,
        variable: String,
    },
}

/// The variables from the secrets of a call.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) env: BTreeMap<String, String>,
    /// Secrets of the installation, by the variables that stand for them.
    named: BTreeMap<String, String>,
}

impl Given {
    /// The variables, for calls where no placeholder can stand for a secret; `instead` advises a client that names
    /// secrets of the installation.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`.
    pub(crate) fn plain(self, instead: &str) -> Result<BTreeMap<String, String>> {
        match self.named.keys().next() {
            None => Ok(self.env),
            Some(variable) => {
                Err(Fault::unsupported(format!("'{variable}' stands for a secret of this server: {instead}")))
            }
        }
    }

    /// The policy for the sandbox, with the rules for its secrets; `None` where the client asked for none and has no
    /// such secrets.
    ///
    /// # Errors
    /// `NOT_FOUND`; `INVALID_ARGUMENT` for a secret that has no hosts.
    pub(super) async fn egress(
        &self,
        asker: &Asker,
        asked: Option<EgressPolicy>,
        template: Option<&str>,
    ) -> Result<Option<EgressPolicy>> {
        if self.named.is_empty() {
            return Ok(asked);
        }
        let (engine, told) = (asker.engine(), asked.is_some());
        let mut egress = match asked {
            Some(policy) => policy,
            None => engine.egress_unless_told(asker.caller().project(), template).await?,
        };
        let mut rules = Vec::new();
        for (variable, secret) in &self.named {
            let secret = engine.secret(asker.caller().project(), secret)?;
            let name = format!("modal-secret-{variable}");
            rules.push(stand_ins::rule("secrets", &name, variable, &secret, &egress)?);
        }
        if !told {
            stand_ins::open(&mut egress, &rules);
        }
        egress.inject.extend(rules);
        Ok(Some(egress))
    }
}

/// The secrets that wait, each for its sender. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Shelf(Kept<Arc<What>>);

impl Default for Shelf {
    fn default() -> Self {
        Self(Kept::new(LIMITS))
    }
}

impl What {
    /// Bytes that it takes in memory.
    fn weight(&self) -> usize {
        let variable = |name: &str, value: &str| VARIABLE_BYTES + name.len() + value.len();
        match self {
            Self::Values(values) => values.iter().map(|(name, value)| variable(name, value.reveal())).sum(),
            Self::Named { secret, variable: name } => variable(name, secret),
        }
    }
}

impl Shelf {
    fn put(&self, id: &str, asker: &Asker, what: What) -> Result<()> {
        if self.0.put(asker.key(), id, what.weight(), Arc::new(what)) {
            return Ok(());
        }
        Err(Fault::new(Status::ResourceExhausted, "the secret has too many variables"))
    }
}

/// `SecretGetOrCreate`.
pub(super) async fn get_or_create(
    asker: &Asker,
    request: SecretGetOrCreateRequest,
) -> Result<SecretGetOrCreateResponse> {
    if !request.deployment_name.is_empty() && request.env_dict.is_empty() {
        return named(asker, &request.deployment_name, &request.required_keys);
    }
    let size: usize = request.env_dict.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > SECRET_MAX_BYTES {
        return Err(Fault::invalid(format!("a secret may have {} KiB at most", SECRET_MAX_BYTES >> 10)));
    }
    // The same values of one API key get the same id, however often the client sends them.
    let text = serde_json::to_string(&request.env_dict).unwrap_or_default();
    let secret_id = super::id_of("st", "atoll modal secret id", &[asker.key().as_str(), &text]);
    let metadata = SecretMetadata { name: String::new(), keys: request.env_dict.keys().cloned().collect() };
    let values = request.env_dict.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    asker.app.control.secrets.put(&secret_id, asker, What::Values(values))?;
    Ok(SecretGetOrCreateResponse { secret_id, metadata: Some(metadata) })
}

/// `Secret.from_name`: a secret of the installation. The variable is the one required key, or is made from the secret's
/// name.
fn named(asker: &Asker, name: &str, keys: &[String]) -> Result<SecretGetOrCreateResponse> {
    // A key that may not make sandboxes learns nothing of names.
    asker.needs(Scope::Manage)?;
    let missing = |_error| {
        let name = atoll_core::error::shorten(name);
        Fault::not_found(format!("Secret '{name}' not found: 'atoll secret set {name} --host HOST' makes it"))
    };
    let secret = asker.engine().secret(asker.caller().project(), name).map_err(missing)?;
    let variable = match keys {
        [] => name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_uppercase(),
        [key] => key.clone(),
        _ => {
            return Err(Fault::invalid(
                "required_keys: a secret of this server is one value, for one variable",
            ));
        }
    };
    let parts = [asker.key().as_str(), secret.id.as_str(), &variable];
    let secret_id = super::id_of("st", "atoll modal named secret id", &parts);
    let metadata = SecretMetadata { name: secret.name.clone(), keys: vec![variable.clone()] };
    let what = What::Named { secret: secret.name, variable };
    asker.app.control.secrets.put(&secret_id, asker, what)?;
    Ok(SecretGetOrCreateResponse { secret_id, metadata: Some(metadata) })
}

/// The variables from the secrets that a call names and sends; later ones win.
///
/// # Errors
/// `NOT_FOUND` for a secret that is not there.
pub(crate) fn given(asker: &Asker, ids: &[String], sources: &[SecretSource]) -> Result<Given> {
    let mut given = Given::default();
    let mut add = |id: &str| {
        let kept = asker.app.control.secrets.0.get(asker.key(), id).ok_or_else(|| {
            Fault::not_found(format!("Secret '{}' not found", atoll_core::error::shorten(id)))
        })?;
        match kept.as_ref() {
            What::Values(values) => {
                let values = values.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned()));
                given.env.extend(values);
            }
            What::Named { secret, variable } => {
                given.named.insert(variable.clone(), secret.clone());
            }
        }
        Ok::<_, Fault>(())
    };
    ids.iter().try_for_each(|id| add(id))?;
    for source in sources {
        if let Some(id) = &source.secret_id {
            add(id)?;
        }
    }
    for source in sources {
        given.env.extend(source.env.iter().flat_map(|env| env.contents.clone()));
    }
    // A value that the client sends wins over a placeholder of the same name.
    let Given { env, named } = &mut given;
    named.retain(|variable, _| !env.contains_key(variable));
    Ok(given)
}
