//! The suite that every database must pass.
