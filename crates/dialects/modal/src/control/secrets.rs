//! Secrets: variables for commands. Newer clients send them with each call; older ones make them first, and name them
//! then: these wait in memory for as long as a program may need them, each for its sender only.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::secret::Secret;
use atoll_dialect_kit::status::Status;

use crate::auth::{Asker, now_ms};
use crate::grpc::{Fault, Result};
use crate::wire::apps::{SecretGetOrCreateRequest, SecretGetOrCreateResponse};
use crate::wire::common::SecretSource;

/// Secrets that wait.
const SECRETS_MAX: usize = 10_000;
/// Those of one key: nobody uses up what is everybody's.
const OF_KEY_MAX: usize = 1000;
/// Bytes of one.
const SECRET_MAX_BYTES: usize = 256 << 10;
/// How long, milliseconds.
const KEPT_MS: u64 = 24 * 3600 * 1000;

#[derive(Debug)]
struct Kept {
    owner: KeyId,
    at_ms: u64,
    values: BTreeMap<String, Secret>,
}

/// What waits. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf(Arc<Mutex<HashMap<String, Kept>>>);

impl Shelf {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<String, Kept>> {
        // A map is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, id: String, owner: &KeyId, values: BTreeMap<String, Secret>) -> Result<()> {
        let now = now_ms();
        let mut table = self.table();
        table.retain(|_, kept| kept.at_ms.saturating_add(KEPT_MS) > now);
        let own = table.values().filter(|kept| kept.owner == *owner).count();
        if !table.contains_key(&id) && (table.len() >= SECRETS_MAX || own >= OF_KEY_MAX) {
            return Err(Fault::new(Status::ResourceExhausted, "too many secrets were sent today"));
        }
        table.insert(id, Kept { owner: owner.clone(), at_ms: now, values });
        Ok(())
    }
}

/// `SecretGetOrCreate`.
pub(super) async fn get_or_create(
    asker: &Asker,
    request: SecretGetOrCreateRequest,
) -> Result<SecretGetOrCreateResponse> {
    if !request.deployment_name.is_empty() && request.env_dict.is_empty() {
        return Err(Fault::not_found(format!(
            "Secret '{}' not found: secrets of this server never enter a sandbox, rules of its network put them into \
             requests on their way out ('atoll secret'). Variables come from Secret.from_dict or Secret.from_dotenv",
            atoll_core::error::shorten(&request.deployment_name)
        )));
    }
    let size: usize = request.env_dict.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > SECRET_MAX_BYTES {
        return Err(Fault::invalid(format!("a secret may have {} KiB at most", SECRET_MAX_BYTES >> 10)));
    }
    // The same values under the same id, however often they are sent; nobody can guess it from the values.
    let text = serde_json::to_string(&request.env_dict).unwrap_or_default();
    let secret_id = super::id_of("st", "atoll modal secret id", &[asker.key().as_str(), &text]);
    let values = request.env_dict.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    asker.app.control.secrets.put(secret_id.clone(), asker.key(), values)?;
    Ok(SecretGetOrCreateResponse { secret_id })
}

/// The variables that follow from what a call names and sends; later ones win.
///
/// # Errors
/// `NOT_FOUND` for a secret that is not there.
pub(crate) fn environment(
    asker: &Asker,
    ids: &[String],
    sources: &[SecretSource],
) -> Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    let mut add = |id: &str| {
        let table = asker.app.control.secrets.table();
        let kept = table.get(id).filter(|kept| asker.may_use_of(&kept.owner)).ok_or_else(|| {
            Fault::not_found(format!("Secret '{}' not found", atoll_core::error::shorten(id)))
        })?;
        variables.extend(kept.values.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned())));
        Ok::<_, Fault>(())
    };
    ids.iter().try_for_each(|id| add(id))?;
    for source in sources {
        if let Some(id) = &source.secret_id {
            add(id)?;
        }
    }
    for source in sources {
        variables.extend(source.env.iter().flat_map(|env| env.contents.clone()));
    }
    Ok(variables)
}
