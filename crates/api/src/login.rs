//! People who log in at an issuer of identities, from a program without a browser.

use atoll_core::secret::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A login that has begun: a person opens an address in a browser, anywhere, and types a code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct DeviceLogin {
    /// What to type.
    pub user_code: String,
    /// Where.
    pub verification_uri: String,
    /// The same with the code in it, if the issuer has such a one.
    pub verification_uri_complete: Option<String>,
    /// How long to wait between two questions what has become of it.
    pub interval_ms: u64,
    /// Until then.
    pub expires_at_ms: u64,
    /// To ask with what has become of it. Any client that has it gets the login.
    #[schema(value_type = String)]
    pub login: Secret,
}

impl Serialize for DeviceLogin {
    /// The one place where it leaves: the answer to the request that began it.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("DeviceLogin", 6)?;
        out.serialize_field("user_code", &self.user_code)?;
        out.serialize_field("verification_uri", &self.verification_uri)?;
        out.serialize_field("verification_uri_complete", &self.verification_uri_complete)?;
        out.serialize_field("interval_ms", &self.interval_ms)?;
        out.serialize_field("expires_at_ms", &self.expires_at_ms)?;
        out.serialize_field("login", self.login.reveal())?;
        out.end()
    }
}

/// Asks what has become of a login.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollDeviceLogin {
    /// As it began.
    #[schema(value_type = String)]
    pub login: Secret,
}

impl Serialize for PollDeviceLogin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("PollDeviceLogin", 1)?;
        out.serialize_field("login", self.login.reveal())?;
        out.end()
    }
}

/// How far a login is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceLoginState {
    /// The code has not been typed yet.
    Pending,
    /// The same, and the question came too early: wait five seconds more between two from now on.
    SlowDown,
    /// It is done.
    Done,
}

/// What has become of a login.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct DeviceLoginPolled {
    /// How far it is.
    pub state: DeviceLoginState,
    /// Who logged in, once it is done.
    pub name: Option<String>,
    /// When it ends.
    pub expires_at_ms: Option<u64>,
    /// What to send as `Authorization: Bearer …`, this once.
    #[schema(value_type = Option<String>)]
    pub secret: Option<Secret>,
}

impl Serialize for DeviceLoginPolled {
    /// The one place where the secret leaves: the answer to who began the login.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("DeviceLoginPolled", 4)?;
        out.serialize_field("state", &self.state)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("expires_at_ms", &self.expires_at_ms)?;
        out.serialize_field("secret", &self.secret.as_ref().map(Secret::reveal))?;
        out.end()
    }
}
