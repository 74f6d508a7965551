//! API keys.

use atoll_core::key::{KeyFormat, Scope};
use atoll_core::secret::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it is for, for people.
    pub name: String,
    /// The highest thing it may do.
    pub scope: Scope,
    /// It stops working this long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// What it looks like, for clients of other vendors that want keys of theirs. It opens the same.
    #[serde(default)]
    pub format: KeyFormat,
    /// The project that it belongs to, by id or name; none when absent. Administrators are of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// The highest thing it may do.
    pub scope: Scope,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it stops working.
    pub expires_at_ms: Option<u64>,
    /// When it was last used, to the minute.
    pub last_used_at_ms: Option<u64>,
    /// Id of the project that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Who it is, if it is not a key that was created but a person who logged in. The scope is what rules give them now, and
    /// `expires_at_ms` when their last login ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<KeyPerson>,
}

/// A person, as the issuer of identities named them when they last logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyPerson {
    /// The issuer.
    pub issuer: String,
    /// Its name for them, which is never given to another person.
    pub subject: String,
    /// Their address for mail, if the issuer has verified it.
    pub email: Option<String>,
    /// Whether a rule names them now: without one they may do nothing.
    pub allowed: bool,
}

/// A new key. The secret is shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct KeyCreated {
    /// The key.
    pub key: Key,
    /// What to send as `Authorization: Bearer …`.
    #[schema(value_type = String)]
    pub secret: Secret,
}

impl Serialize for KeyCreated {
    /// The one place where a secret leaves: the answer to the request that made it.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("KeyCreated", 2)?;
        out.serialize_field("key", &self.key)?;
        out.serialize_field("secret", self.secret.reveal())?;
        out.end()
    }
}

/// All keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// The keys.
    pub items: Vec<Key>,
}
