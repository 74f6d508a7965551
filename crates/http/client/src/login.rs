//! People who log in.

use atoll_api::{DeviceLogin, DeviceLoginPolled, PollDeviceLogin};
use http::Method;

use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Begins a login of a person at the server's issuer of identities. Needs no key.
    pub async fn begin_device_login(&self) -> Result<DeviceLogin> {
        self.call(self.request(Method::POST, self.target(["v1", "login", "device"]))).await
    }

    /// What has become of it. Needs no key.
    pub async fn poll_device_login(&self, poll: &PollDeviceLogin) -> Result<DeviceLoginPolled> {
        self.submit(Method::POST, self.target(["v1", "login", "device", "poll"]), poll).await
    }

    /// Ends the login whose secret this client has.
    pub async fn end_login(&self) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "login"]))).await
    }

    /// Ends all logins of a person.
    pub async fn end_logins_of(&self, key: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "keys", key, "logins"]))).await
    }
}
