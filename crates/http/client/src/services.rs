//! Services of a sandbox.

use atoll_api::{CreateService, Service, ServiceList, ServiceLogPage};
use http::Method;

use crate::{Client, OutputQuery, Result};

/// A service is named by its name, its sandbox by id or name.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Declares a service, which starts at once.
    pub async fn create_service(&self, sandbox: &str, create: &CreateService) -> Result<Service> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["services"]), create).await
    }

    /// All services of a sandbox.
    pub async fn list_services(&self, sandbox: &str) -> Result<ServiceList> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["services"]))).await
    }

    /// One service. Waits up to `wait_ms` (at most 60,000) for it to settle.
    pub async fn get_service(&self, sandbox: &str, service: &str, wait_ms: u64) -> Result<Service> {
        let target = self.in_sandbox(sandbox, &["services", service]).query("wait_ms", wait_ms);
        self.call_waiting(self.request(Method::GET, target), wait_ms).await
    }

    /// Ends its run and begins another.
    pub async fn restart_service(&self, sandbox: &str, service: &str) -> Result<Service> {
        let target = self.in_sandbox(sandbox, &["services", service, "restart"]);
        self.call(self.request(Method::POST, target)).await
    }

    /// Ends its run.
    pub async fn stop_service(&self, sandbox: &str, service: &str) -> Result<Service> {
        let target = self.in_sandbox(sandbox, &["services", service, "stop"]);
        self.call(self.request(Method::POST, target)).await
    }

    /// Ends it and forgets it.
    pub async fn delete_service(&self, sandbox: &str, service: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.in_sandbox(sandbox, &["services", service]))).await
    }

    /// Its log from an offset on, as much as there is.
    pub async fn service_log(
        &self,
        sandbox: &str,
        service: &str,
        query: OutputQuery,
    ) -> Result<ServiceLogPage> {
        let target = self
            .in_sandbox(sandbox, &["services", service, "logs"])
            .query("offset", query.offset)
            .query("wait_ms", query.wait_ms)
            .maybe("max_bytes", query.max_bytes);
        self.call_waiting(self.request(Method::GET, target), query.wait_ms).await
    }
}
