//! Drafts and specs.
//!
//! A *draft* is what a caller asked, with holes. A *spec* is what was validated and resolved: every
//! default is filled in, nothing has to be looked up again. Specs are what the store keeps.

mod check;
mod exec;
mod sandbox;
mod template;

pub use check::{env, image_reference, labels, name, path, user};
pub use exec::{Command, ExecDraft, ExecSpec, TtySize, command, shown};
pub use sandbox::{
    Accelerator, Base, Caps, DEFAULT_PATH, ImageDefaults, IsolationLevel, Resources, ResourcesDraft,
    SandboxDraft, SandboxSpec, SandboxUpdate,
};
pub use template::TemplateSpec;
