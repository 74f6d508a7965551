//! The gateway: the one place through which sandboxes reach the outside.

pub mod intercept;
