//! Ports, and accesses to ports and files.

use atoll_core::access::{AccessDraft, Target};
use atoll_core::secret::Secret;
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A port on which something listens inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// The TCP port.
    pub port: u16,
    /// Where clients that are allowed to reach it do so from outside.
    pub url: String,
    /// Whether everybody may.
    pub public: bool,
}

/// Ports on which something listens inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// Ascending.
    pub items: Vec<Port>,
}

/// A file that an access is to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessFile {
    /// Absolute path in the sandbox.
    pub path: String,
    /// Media type to answer with, instead of `application/octet-stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Let a browser show it rather than save it. It runs nothing either way.
    #[serde(default)]
    pub inline: bool,
}

/// Lets clients without an API key reach a port or a file. Exactly one of `port`, `all_ports` and `file`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateAccess {
    /// One TCP port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Every TCP port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all_ports: bool,
    /// The bytes of a file, to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<AccessFile>,
    /// For everybody, without a token: ports only. Needs the scope `manage`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// What it is for, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It ends this long from now; with the sandbox when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl TryFrom<CreateAccess> for AccessDraft {
    type Error = Error;

    fn try_from(request: CreateAccess) -> Result<Self> {
        let CreateAccess { port, all_ports, file, public, name, ttl_ms } = request;
        let target = match (port, all_ports, file) {
            (Some(port), false, None) => Target::Port(port),
            (None, true, None) => Target::Ports,
            (None, false, Some(AccessFile { path, media_type, inline })) => {
                Target::File { path, media_type, inline }
            }
            _ => return Err(Error::invalid("port", "give exactly one of 'port', 'all_ports' and 'file'")),
        };
        Ok(Self { target, public, name, ttl_ms })
    }
}

/// An access, without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Access {
    /// Its id.
    pub id: String,
    /// Id of the sandbox; the access ends with it.
    pub sandbox: String,
    /// The TCP port, if it is to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether it is to every TCP port.
    pub all_ports: bool,
    /// The file, if it is to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<AccessFile>,
    /// Whether it is for everybody.
    pub public: bool,
    /// What it is for.
    pub name: Option<String>,
    /// Where it is used.
    pub url: String,
    /// When it was made.
    pub created_at_ms: u64,
    /// Id of the key that made it.
    pub created_by: Option<String>,
    /// When it ends.
    pub expires_at_ms: Option<u64>,
}

/// A new access. Its token is shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct AccessCreated {
    /// The access.
    pub access: Access,
    /// What to send as `X-Atoll-Token`; absent when it is public.
    #[schema(value_type = Option<String>)]
    pub token: Option<Secret>,
    /// The address with the token in it, to open in a browser; without one when it is public.
    #[schema(value_type = String)]
    pub link: Secret,
}

impl Serialize for AccessCreated {
    /// The one place where a token leaves: the answer to the request that made it.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("AccessCreated", 3)?;
        out.serialize_field("access", &self.access)?;
        out.serialize_field("token", &self.token.as_ref().map(Secret::reveal))?;
        out.serialize_field("link", self.link.reveal())?;
        out.end()
    }
}

/// The accesses of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessList {
    /// The oldest first.
    pub items: Vec<Access>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_target() {
        let read = |text: &str| AccessDraft::try_from(serde_json::from_str::<CreateAccess>(text).unwrap());
        assert_eq!(read(r#"{"port":80}"#).unwrap().target, Target::Port(80));
        assert_eq!(read(r#"{"all_ports":true,"public":true}"#).unwrap().target, Target::Ports);
        assert!(matches!(
            read(r#"{"file":{"path":"/a"}}"#).unwrap().target,
            Target::File { inline: false, .. }
        ));
        for bad in ["{}", r#"{"port":80,"all_ports":true}"#, r#"{"port":80,"file":{"path":"/a"}}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
