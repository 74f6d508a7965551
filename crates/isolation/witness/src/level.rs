//! How much this host's kernel can say, and why not more.

use std::io;

/// Why the host's kernel is no witness here.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The kernel does not describe its types, which fitting the programs to it needs.
    #[error(
        "the kernel does not describe its types in /sys/kernel/btf/vmlinux ({0}); it needs CONFIG_DEBUG_INFO_BTF"
    )]
    NoTypes(String),
    /// This process may not.
    #[error(
        "the kernel lets this server not {step} (EPERM); it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN outside of user namespaces"
    )]
    NoRight {
        /// What was tried.
        step: String,
    },
    /// The kernel is of another make than the programs.
    #[error("the programs do not fit this kernel: {0}")]
    Unfit(String),
    /// Anything else.
    #[error("cannot {step}: {source}")]
    Kernel {
        /// What was tried.
        step: String,
        /// The kernel's word.
        source: io::Error,
    },
}

impl Missing {
    pub(crate) fn refused(step: &str, source: io::Error) -> Self {
        let step = step.to_owned();
        if source.raw_os_error() == Some(libc::EPERM) {
            return Self::NoRight { step };
        }
        Self::Kernel { step, source }
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
