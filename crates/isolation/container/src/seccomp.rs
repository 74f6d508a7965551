//! The system call filter of everything in a sandbox, compiled once.
//!
//! It is the second line: the first is that no capability inside reaches beyond the sandbox's own user
//! namespace. The filter keeps code paths of the kernel out of reach that have no use in a sandbox and a
//! history of faults. `clone3` stays allowed, although its flags cannot be inspected: the guest agent
//! needs it, user namespaces are forbidden by a count of 0 (see [`crate::userns`]), and all other
//! namespaces need a capability that nothing inside has.

use std::collections::BTreeMap;

use atoll_isolation::IsolationError;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Refused with `EPERM`, whatever the arguments.
const REFUSED: &[libc::c_long] = &[
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // Other namespaces.
    libc::SYS_setns,
    // Programs and modules for the kernel, other kernels.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    // Keys are shared beyond the sandbox.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Large attack surface, little use.
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The machine itself.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// Namespace flags of `clone` and `unshare`. Each is refused.
const NAMESPACES: &[libc::c_int] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Socket families that exist inside; all others (`AF_VSOCK` leads to the host of a virtual machine,
/// `AF_ALG` into kernel cryptography, …) are refused.
const FAMILIES: &[libc::c_int] =
    &[libc::AF_UNSPEC, libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Compiles the filter for this architecture.
pub(crate) fn compile() -> Result<Vec<libc::sock_filter>, IsolationError> {
    let program = build().map_err(|error| IsolationError::Unavailable(format!("seccomp filter: {error}")))?;
    let own = program.into_iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k });
    Ok(refuse_x32().into_iter().chain(own).collect())
}

fn build() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, vec![])).collect();
    rules.insert(libc::SYS_unshare, namespace_rules()?);
    rules.insert(libc::SYS_clone, namespace_rules()?);
    rules.insert(libc::SYS_socket, vec![other_families()?]);
    rules.insert(libc::SYS_socketpair, vec![other_families()?]);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::try_from(std::env::consts::ARCH)?)?
        .try_into()
}

fn namespace_rules() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    NAMESPACES
        .iter()
        .map(|flag| {
            let bit = u64::from(flag.cast_unsigned());
            let set = SeccompCmpOp::MaskedEq(bit);
            SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, set, bit)?])
        })
        .collect()
}

fn other_families() -> Result<SeccompRule, seccompiler::BackendError> {
    let differs = |family: &libc::c_int| {
        let value = u64::from(family.cast_unsigned());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
    };
    SeccompRule::new(FAMILIES.iter().map(differs).collect::<Result<_, _>>()?)
}

/// On x86-64 the x32 calls are the same calls under other numbers, which the filter above would let
/// pass: all of them are answered "no such call" first.
#[cfg(target_arch = "x86_64")]
fn refuse_x32() -> Vec<libc::sock_filter> {
    /// Set in the number of every x32 call.
    const X32_BIT: u32 = 0x4000_0000;
    /// Offset of the number in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    // `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JGE | BPF_K`, `BPF_RET | BPF_K`.
    let (load, jump_if_ge, ret) = (0x20, 0x35, 0x06);
    let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    vec![
        libc::sock_filter { code: load, jt: 0, jf: 0, k: NUMBER },
        libc::sock_filter { code: jump_if_ge, jt: 0, jf: 1, k: X32_BIT },
        libc::sock_filter { code: ret, jt: 0, jf: 0, k: enosys },
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn refuse_x32() -> Vec<libc::sock_filter> {
    Vec::new()
}
