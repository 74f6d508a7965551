//! What an API key may do.

use serde::{Deserialize, Serialize};

/// What a key may do. Each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at sandboxes, execs, output, files.
    Read,
    /// Run commands and change files in sandboxes.
    Exec,
    /// Make, change and delete sandboxes, templates and images.
    Manage,
    /// Everything, including keys, registries and leaks.
    Admin,
}

impl Scope {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Exec => "exec",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Read, Self::Exec, Self::Manage, Self::Admin].into_iter().find(|scope| scope.as_str() == text)
    }
}

/// What a key looks like. Clients of other vendors check, or are made for, keys of a certain shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyFormat {
    /// `atoll_` and 58 characters, six of them a checksum.
    #[default]
    Atoll,
    /// `e2b_` and 40 hexadecimal digits.
    E2b,
    /// `dtn_` and 64 hexadecimal digits.
    Daytona,
    /// `ak_` and 43 letters and digits.
    Runloop,
    /// A pair, joined by a colon: an id, `ak-` and 22 letters and digits, and a secret, `as-` and 22 more.
    Modal,
}

impl KeyFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Atoll, Self::E2b, Self::Daytona, Self::Runloop, Self::Modal];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Atoll => "atoll",
            Self::E2b => "e2b",
            Self::Daytona => "daytona",
            Self::Runloop => "runloop",
            Self::Modal => "modal",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyFormat, Scope};

    #[test]
    fn texts_round_trip_and_order_is_power() {
        for scope in [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin] {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
        }
        for format in KeyFormat::ALL {
            assert_eq!(KeyFormat::parse(format.as_str()), Some(format));
        }
        assert!(Scope::Read < Scope::Exec && Scope::Exec < Scope::Manage && Scope::Manage < Scope::Admin);
    }
}
