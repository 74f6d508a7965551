//! How strongly a sandbox is cut off, and what executes its machine.

use serde::{Deserialize, Serialize};

/// How strongly a sandbox is cut off. Recorded with the sandbox and never silently downgraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum IsolationLevel {
    /// Linux namespaces with a user namespace, seccomp and cgroups. Shares the host's kernel.
    Container,
    /// A kernel in user space, gVisor's, between the sandbox and the host's kernel.
    Gvisor,
    /// A virtual machine with a kernel of its own.
    Microvm,
}

impl IsolationLevel {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
        }
    }
}

impl std::fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What executes the instructions of a virtual machine. The weaker comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Accelerator {
    /// Software. QEMU's project does not call that a security boundary.
    Emulated,
    /// The processor, with Linux' KVM.
    Kvm,
}

impl Accelerator {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Kvm => "kvm",
        }
    }
}

impl std::fmt::Display for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
