//! What sandboxes use at this moment.

use atoll_api::LiveUsageList;
use http::Method;

use crate::{Client, Result};

impl Client {
    /// What all sandboxes with these labels use, by one request.
    ///
    /// # Errors
    /// Fails with [`crate::ClientError`].
    pub async fn live_usage(&self, labels: &[(String, String)]) -> Result<LiveUsageList> {
        let target = labels.iter().fold(self.target(["v1", "live"]), |target, (name, value)| {
            target.query("label", format_args!("{name}={value}"))
        });
        self.call(self.request(Method::GET, target)).await
    }
}
