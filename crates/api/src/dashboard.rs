//! The dashboard.

use atoll_core::secret::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A link that signs a browser in to the dashboard with the key of the request that made it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct DashboardLink {
    /// To open in a browser, once.
    #[schema(value_type = String)]
    pub link: Secret,
    /// Until then.
    pub expires_at_ms: u64,
}

impl Serialize for DashboardLink {
    /// The one place where the link leaves: the answer to the request that made it.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("DashboardLink", 2)?;
        fields.serialize_field("link", self.link.reveal())?;
        fields.serialize_field("expires_at_ms", &self.expires_at_ms)?;
        fields.end()
    }
}
