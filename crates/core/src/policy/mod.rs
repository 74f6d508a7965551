//! What a sandbox may do on the network, and what happens to its requests on the way. Pure.

mod domain;
pub mod inject;
mod secret;

pub use domain::{DomainPattern, HostName};
pub use inject::{BasicAuth, InjectRule, Placeholder, RequestFacts};
pub use secret::{SecretRef, SecretScope, SecretUser, Template, secret_name, secret_value};
