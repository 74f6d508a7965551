//! Secrets: values come in and never go out.

use std::collections::BTreeMap;

use atoll_core::policy::SecretScope;
use atoll_core::secret::Secret as Value;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

/// Makes a secret, gives it a new value, or changes its scope or note. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PutSecret {
    /// A new value: the next version. A new secret needs one. Never returned.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "reveal")]
    #[schema(value_type = Option<String>, format = Password)]
    pub value: Option<Value>,
    /// Where it may go and who may use it. A new secret needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<SecretScope>,
    /// What people should know about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// For clients: the request that carries a value must carry it. No answer holds such a field.
#[expect(clippy::ref_option, reason = "the signature that serde wants")]
fn reveal<S: Serializer>(value: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(Value::reveal).serialize(serializer)
}

/// As [`reveal`], for several.
pub(crate) fn reveal_all<S: Serializer>(
    values: &BTreeMap<String, Value>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(name, value)| (name, value.reveal())))
}

/// A version of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretVersion {
    /// Counts from 1. Rules may pin it: `NAME@3`.
    pub version: u32,
    /// When it was set.
    pub created_at_ms: u64,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// Where it may go and who may use it.
    pub scope: SecretScope,
    /// What people wrote about it.
    pub note: String,
    /// The versions that are kept, oldest first.
    pub versions: Vec<SecretVersion>,
    /// When it was made.
    pub created_at_ms: u64,
    /// Id of the key that made it.
    pub created_by: Option<String>,
}

/// All secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// By name.
    pub items: Vec<Secret>,
}

/// One use of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretUse {
    /// When.
    pub at_ms: u64,
    /// The secret.
    pub secret: String,
    /// Which version.
    pub version: u32,
    /// Id of the sandbox.
    pub sandbox: String,
    /// The host that received it.
    pub host: String,
    /// The request's method.
    pub method: String,
    /// The request's path, without its query.
    pub path: String,
    /// The rule that put it in.
    pub rule: String,
}

/// Uses of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretUseList {
    /// The newest first.
    pub items: Vec<SecretUse>,
}

/// The vault's key was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VaultRotated {
    /// How many values were sealed anew.
    pub resealed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_its_value_and_prints_nothing() {
        let put = PutSecret { value: Some(Value::new("hunter2")), ..PutSecret::default() };
        assert_eq!(serde_json::to_string(&put).unwrap(), r#"{"value":"hunter2"}"#);
        assert!(!format!("{put:?}").contains("hunter2"));
        let create = crate::CreateSandbox {
            secrets: BTreeMap::from([("A".to_owned(), Value::new("hunter2"))]),
            ..crate::CreateSandbox::default()
        };
        assert!(serde_json::to_string(&create).unwrap().contains(r#""secrets":{"A":"hunter2"}"#));
        assert!(!format!("{create:?}").contains("hunter2"));
    }
}
