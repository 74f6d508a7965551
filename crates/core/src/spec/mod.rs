//! Drafts and specs.
//!
//! A *draft* is a caller's request, with holes. A *spec* is the validated and resolved form: every
//! default is filled in, nothing has to be looked up again. Specs are what the store keeps.

pub(crate) mod check;
mod defaults;
mod exec;
mod idempotency;
mod isolation;
mod resolve;
mod resources;
mod sandbox;
mod template;
mod update;

pub use check::{
    client_annotations, env, image_reference, is_own_annotation, labels, name, path, recipe_name,
    template_tag, template_tags, user, volume_name,
};
pub use defaults::Defaults;
pub use exec::{Command, ExecDraft, ExecSpec, TtySize, command, shown};
pub use idempotency::IdempotencyKey;
pub use isolation::{Accelerator, IsolationLevel};
pub use resolve::{Base, DEFAULT_PATH};
pub use resources::{Caps, Resources, ResourcesDraft, present};
pub use sandbox::{ImageDefaults, RequestKey, SandboxDraft, SandboxSpec};
pub use template::TemplateSpec;
pub use update::SandboxUpdate;
