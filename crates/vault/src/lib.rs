//! Secrets at rest.
