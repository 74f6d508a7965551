//! OCSF.
