//! The filter of system calls around a sentry and everything in its jail: what `runsc` needs for the sandboxes of this
//! crate, and nothing else.
//!
//! The launcher's child installs it before it starts `runsc`. The sentry, the gofer and the processes in which programs
//! run inherit it and add filters of gVisor's own: a call has to pass all of them. `runsc` builds the last part of the
//! jail itself, so mounts, another root and namespaces by `clone` are let through here; gVisor's filters, which it
//! installs when that is done and before anything of the sandbox runs, take them away.
//!
//! The list is what gVisor's filters let the sentry and the gofer call, with both platforms and the host's network, and
//! what was seen of `runsc` and of Go's runtime while a sandbox was made, used and ended. It leaves out what only parts
//! of gVisor call that are not used here (checkpoints, devices, KVM).

use atoll_isolation_host::filter::{Condition, Profile, Sockets};

/// What a process of the jail may call.
pub(crate) const PROFILE: Profile =
    Profile { allowed: ALLOWED, conditional: CONDITIONAL, sockets: Some(SOCKETS) };

/// Sockets inside are the host's (see [`crate::runsc::options`]): the sentry asks for those of TCP, UDP and ICMP. It is
/// asked itself by sockets with a name, and `runsc` asks for interfaces, addresses and routes. Netlink inside is the
/// sentry's own.
const SOCKETS: Sockets = Sockets {
    calls: &[libc::SYS_socket],
    unspecified: false,
    streams: &[0, libc::IPPROTO_TCP],
    datagrams: &[0, libc::IPPROTO_UDP],
    netlink: &[libc::NETLINK_ROUTE],
};

const CONDITIONAL: &[(libc::c_long, Condition)] = &[
    (libc::SYS_socketpair, Condition::OneOf(&[libc::AF_UNIX.cast_unsigned()])),
    // `runsc` needs all others to start the sentry and the gofer. `clone3`, whose flags a filter cannot see, is answered as
    // if it were missing.
    (libc::SYS_clone, Condition::Without(libc::CLONE_NEWCGROUP)),
];

const ALLOWED: &[libc::c_long] = &[
    // The rest of the jail, until gVisor's own filters are there.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_execve,
    libc::SYS_seccomp,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_umask,
    // Files of the sandbox.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_getxattr,
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_pipe,
    libc::SYS_pipe2,
    // Sockets.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mincore,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    // Waiting, time and events.
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_times,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_delete,
    // Threads, processes and signals; tracing is how both platforms begin a process, and how `ptrace` goes on.
    libc::SYS_ptrace,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_arch_prctl,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // What a process asks about itself and the host.
    libc::SYS_getuid,
    libc::SYS_getgid,
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
];

#[cfg(test)]
#[expect(unsafe_code, reason = "system calls that no library makes")]
mod tests {
    use atoll_testing::calls::DANGEROUS;

    use super::*;

    /// What the kernel answers to a call of a thread behind the filter: 0, or the error.
    fn answer<const N: usize>(call: libc::c_long, arguments: [libc::c_long; N]) -> i32 {
        let mut all = [0; 3];
        all[..N].copy_from_slice(&arguments);
        let filtered = move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            PROFILE.install().unwrap();
            // SAFETY: no argument of these tests is a pointer to something.
            let done = unsafe { libc::syscall(call, all[0], all[1], all[2], 0, 0, 0) };
            if done >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
        };
        std::thread::spawn(filtered).join().unwrap()
    }

    #[test]
    fn what_no_sentry_calls_is_refused() {
        for (name, call) in DANGEROUS {
            let refused = answer(call, [0, 0]);
            assert!(
                refused == libc::EPERM || (refused == libc::ENOSYS && call >= 424),
                "{name}: {}",
                std::io::Error::from_raw_os_error(refused)
            );
        }
    }

    #[test]
    fn sockets_are_of_the_families_that_a_sandbox_has() {
        let socket = |family: libc::c_int, kind: libc::c_int| {
            answer(libc::SYS_socket, [libc::c_long::from(family), libc::c_long::from(kind)])
        };
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK] {
            assert_eq!(socket(family, libc::SOCK_DGRAM), 0, "{family}");
        }
        for family in 0..48 {
            let known = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].contains(&family);
            // As the host's root, whom the kernel refuses no family that it has.
            assert!(known || socket(family, libc::SOCK_RAW) == libc::EPERM, "{family}");
        }
        // A sentry that is taken over has the host's kernel load no module.
        let asked = |family: libc::c_int, kind: libc::c_int, protocol: libc::c_int| {
            answer(libc::SYS_socket, [family, kind, protocol].map(libc::c_long::from))
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(asked(family, libc::SOCK_STREAM, libc::IPPROTO_TCP), 0, "{family}");
            assert_eq!(asked(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP), 0, "{family}");
            for protocol in [libc::IPPROTO_SCTP, libc::IPPROTO_DCCP, libc::IPPROTO_MPTCP, 115] {
                for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
                    assert_eq!(asked(family, kind, protocol), libc::EPERM, "{family} {kind} {protocol}");
                }
            }
            assert_eq!(asked(family, libc::SOCK_DCCP, 0), libc::EPERM, "{family}");
        }
        for protocol in 1..32 {
            assert_eq!(asked(libc::AF_NETLINK, libc::SOCK_RAW, protocol), libc::EPERM, "netlink {protocol}");
        }
        let pair = [libc::c_long::from(libc::AF_INET), libc::c_long::from(libc::SOCK_STREAM)];
        assert_eq!(answer(libc::SYS_socketpair, pair), libc::EPERM);
    }

    #[test]
    fn what_the_sentry_needs_is_there() {
        for call in [libc::SYS_getpid, libc::SYS_sched_yield, libc::SYS_epoll_create1, libc::SYS_eventfd2] {
            assert_eq!(answer(call, [0, 0]), 0, "{call}");
        }
        // Both are asked with nothing, and the kernel says what is wrong with that.
        assert_eq!(answer(libc::SYS_mount, [0, 0]), libc::EFAULT);
        assert_eq!(answer(libc::SYS_ptrace, [libc::c_long::from(libc::PTRACE_CONT), -1]), libc::ESRCH);
        let cgroup = libc::c_long::from(libc::CLONE_NEWCGROUP | libc::SIGCHLD);
        assert_eq!(answer(libc::SYS_clone, [cgroup, 0]), libc::EPERM);
    }
}
