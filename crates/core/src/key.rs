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

#[cfg(test)]
mod tests {
    use super::Scope;

    #[test]
    fn texts_round_trip_and_order_is_power() {
        for scope in [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin] {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
        }
        assert!(Scope::Read < Scope::Exec && Scope::Exec < Scope::Manage && Scope::Manage < Scope::Admin);
    }
}
