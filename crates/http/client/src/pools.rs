//! Warm pools.

use atoll_api::{Pool, PoolList, PutPool};
use http::Method;

use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// All pools as they are now.
    pub async fn list_pools(&self) -> Result<PoolList> {
        self.call(self.request(Method::GET, self.target(["v1", "pools"]))).await
    }

    /// Sets a pool up, or changes its size.
    pub async fn put_pool(&self, put: &PutPool) -> Result<Pool> {
        self.submit(Method::PUT, self.target(["v1", "pools"]), put).await
    }

    /// Forgets what a call set for this template or this image.
    pub async fn delete_pool(&self, template: Option<&str>, image: Option<&str>) -> Result<()> {
        let target = self.target(["v1", "pools"]).maybe("template", template).maybe("image", image);
        self.call_empty(self.request(Method::DELETE, target)).await
    }
}
