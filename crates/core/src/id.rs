//! Typed identifiers.
//!
//! An id is a two-letter prefix that names the noun and twenty characters of lower-case Crockford
//! base32: 48 bits of milliseconds since the epoch, then 52 random bits. Ids therefore sort by
//! age, fit in a DNS label (`3000-sb…` stays below 63), in a cgroup name and in a host name, and
//! cannot be confused with a port number, which is always decimal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters after the prefix.
const BODY_LEN: usize = 20;
const RANDOM_BITS: u32 = 52;

fn encode(prefix: &str, unix_ms: u64, random: u64) -> String {
    let mut value = (u128::from(unix_ms & 0xffff_ffff_ffff) << RANDOM_BITS)
        | u128::from(random & ((1 << RANDOM_BITS) - 1));
    let mut body = [0_u8; BODY_LEN];
    for slot in body.iter_mut().rev() {
        *slot = ALPHABET[usize::from((value & 31) as u8)];
        value >>= 5;
    }
    let mut text = String::with_capacity(prefix.len() + BODY_LEN);
    text.push_str(prefix);
    text.extend(body.iter().map(|byte| char::from(*byte)));
    text
}

/// The milliseconds and the random bits of a valid body.
fn decode(body: &str) -> (u64, u64) {
    let mut value = 0_u128;
    for byte in body.bytes() {
        // Every byte of a valid body is one of the 32.
        let digit = ALPHABET.iter().position(|known| *known == byte).unwrap_or_default();
        value = (value << 5) | digit as u128;
    }
    let mask = (1_u128 << RANDOM_BITS) - 1;
    let part = |bits: u128| u64::try_from(bits).unwrap_or(u64::MAX);
    (part(value >> RANDOM_BITS), part(value & mask))
}

fn is_valid(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix)
        .is_some_and(|body| body.len() == BODY_LEN && body.bytes().all(|b| ALPHABET.contains(&b)))
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $noun:literal, $not_found:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The two letters that every id of this kind starts with.
            pub const PREFIX: &'static str = $prefix;

            /// Makes an id from milliseconds since the epoch and 52 random bits (the rest is ignored).
            #[must_use]
            pub fn from_parts(unix_ms: u64, random: u64) -> Self {
                Self(encode($prefix, unix_ms, random))
            }

            /// The parts that it was made of: milliseconds since the epoch and 52 random bits, for APIs
            /// whose ids have another form. [`Self::from_parts`] gives the same id again.
            #[must_use]
            pub fn parts(&self) -> (u64, u64) {
                decode(&self.0[Self::PREFIX.len()..])
            }

            /// The text form.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The error that says no such thing exists.
            #[must_use]
            pub fn not_found(text: &str) -> Error {
                Error::new($not_found, format!(concat!("no ", $noun, " '{}'"), crate::error::shorten(text)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            /// A text that is not an id of this kind cannot name an existing thing: the error is "not found".
            fn from_str(text: &str) -> Result<Self, Error> {
                if is_valid($prefix, text) { Ok(Self(text.to_owned())) } else { Err(Self::not_found(text)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

id_type!(
    /// One sandbox.
    SandboxId, "sb", "sandbox", Code::SandboxNotFound
);
id_type!(
    /// One exec: a command run in a sandbox.
    ExecId, "ex", "exec", Code::ExecNotFound
);
id_type!(
    /// One version of a template.
    TemplateId, "tp", "template", Code::TemplateNotFound
);
id_type!(
    /// One build of a template.
    BuildId, "bl", "build", Code::BuildNotFound
);
id_type!(
    /// One snapshot.
    SnapshotId, "sn", "snapshot", Code::SnapshotNotFound
);
id_type!(
    /// One volume.
    VolumeId, "vo", "volume", Code::VolumeNotFound
);
id_type!(
    /// One API key (not the key itself).
    KeyId, "ky", "API key", Code::KeyNotFound
);
id_type!(
    /// One access: lets a client without an API key reach a port or a file.
    AccessId, "ac", "access", Code::AccessNotFound
);
id_type!(
    /// One SSH public key.
    SshKeyId, "sk", "SSH key", Code::SshKeyNotFound
);

id_type!(
    /// One secret, independent of its name.
    SecretId, "sc", "secret", Code::SecretNotFound
);

id_type!(
    /// One service, independent of its name: names the execs of its runs.
    ServiceId, "sv", "service", Code::ServiceNotFound
);

id_type!(
    /// One agent that lives in a sandbox.
    AgentId, "ag", "agent", Code::AgentNotFound
);
id_type!(
    /// One session with an agent.
    SessionId, "se", "session", Code::SessionNotFound
);
id_type!(
    /// One schedule of an agent: what it is sent by time.
    ScheduleId, "sd", "schedule", Code::ScheduleNotFound
);

id_type!(
    /// One context of a sandbox's code interpreter.
    ContextId, "cx", "context", Code::ContextNotFound
);

id_type!(
    /// One node of a cluster: a server with a data directory of its own.
    NodeId, "nd", "node", Code::NodeNotFound
);

id_type!(
    /// One project: keys and what they make, apart from all others.
    ProjectId, "pj", "project", Code::ProjectNotFound
);

/// Whether a text has the form of an id of any kind. No name may have it, so that a caller's text is always one or the
/// other: an id is looked up as an id, and a caller cannot name one thing by the id of another.
#[must_use]
pub fn is_id_shaped(text: &str) -> bool {
    const PREFIXES: [&str; 17] = [
        SandboxId::PREFIX,
        ExecId::PREFIX,
        TemplateId::PREFIX,
        BuildId::PREFIX,
        SnapshotId::PREFIX,
        VolumeId::PREFIX,
        KeyId::PREFIX,
        AccessId::PREFIX,
        SshKeyId::PREFIX,
        SecretId::PREFIX,
        ServiceId::PREFIX,
        AgentId::PREFIX,
        SessionId::PREFIX,
        ScheduleId::PREFIX,
        ContextId::PREFIX,
        NodeId::PREFIX,
        ProjectId::PREFIX,
    ];
    PREFIXES.iter().any(|prefix| is_valid(prefix, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips_and_sorts_by_time(a in 0_u64..1 << 48, b in 0_u64..1 << 48, r in any::<u64>(), s in any::<u64>()) {
            let (x, y) = (SandboxId::from_parts(a, r), SandboxId::from_parts(b, s));
            prop_assert_eq!(x.as_str().parse::<SandboxId>().unwrap(), x.clone());
            if a < b { prop_assert!(x < y); }
            let (ms, random) = x.parts();
            prop_assert_eq!(SandboxId::from_parts(ms, random), x);
        }

        #[test]
        fn rejects_what_is_not_an_id(text in "\\PC{0,40}") {
            if let Ok(id) = text.parse::<SandboxId>() { prop_assert_eq!(id.as_str(), text); }
        }
    }

    #[test]
    fn kinds_do_not_mix() {
        let sandbox = SandboxId::from_parts(1, 2);
        let error = sandbox.as_str().parse::<ExecId>().unwrap_err();
        assert_eq!(error.code, Code::ExecNotFound);
        assert_eq!(sandbox.as_str().len(), 22);
    }
}
