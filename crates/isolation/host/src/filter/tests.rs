//! Filters as the kernel applies them, each on a thread of its own.

use super::*;

const PROFILE: Profile = Profile {
    // What a thread needs to tell what it saw, and to end.
    allowed: &[
        libc::SYS_futex,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigprocmask,
        libc::SYS_getppid,
    ],
    conditional: &[
        (libc::SYS_socket, Condition::OneOf(&[libc::AF_UNIX.cast_unsigned(), libc::AF_INET.cast_unsigned()])),
        (libc::SYS_unshare, Condition::Without(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)),
        // Any call with a number as its first argument would do.
        (libc::SYS_umask, Condition::With(0o011)),
    ],
    sockets: None,
};

/// What the kernel answers to a call: 0, or the error.
fn answer(call: c_long, first: c_long) -> c_int {
    // SAFETY: none of the calls that the tests make has a pointer as its first argument and gets past the filter.
    let done = unsafe { libc::syscall(call, first, 0, 0, 0, 0, 0) };
    if done >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

fn filtered<T: Send>(calls: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            PROFILE.install().unwrap();
            calls()
        });
        thread.join().unwrap()
    })
}

#[test]
fn what_is_not_listed_is_refused_by_the_kernel() {
    let [listed, other, young, unreviewed] = filtered(|| {
        [libc::SYS_getppid, libc::SYS_getuid, libc::SYS_io_uring_setup, c_long::from(UNKNOWN_FROM) + 5]
            .map(|call| answer(call, 0))
    });
    assert_eq!((listed, other), (0, libc::EPERM));
    assert_eq!((young, unreviewed), (libc::ENOSYS, libc::ENOSYS), "programs use older calls");
    assert_eq!(answer(libc::SYS_getuid, 0), 0, "other threads have no filter");
}

#[test]
fn arguments_decide_where_they_are_asked_for() {
    let answers = filtered(|| {
        [
            answer(libc::SYS_socket, c_long::from(libc::AF_NETLINK)),
            answer(libc::SYS_unshare, c_long::from(libc::CLONE_NEWUSER)),
            answer(libc::SYS_unshare, c_long::from(libc::CLONE_NEWNS | libc::CLONE_FS)),
            answer(libc::SYS_umask, 0o001),
        ]
    });
    assert_eq!(answers, [libc::EPERM; 4]);
    let answers = filtered(|| {
        [answer(libc::SYS_unshare, c_long::from(libc::CLONE_FS)), answer(libc::SYS_umask, 0o033)]
    });
    assert_eq!(answers, [0, 0]);
    // The kernel knows no such type of socket, and says so: the filter let the call through.
    let socket = filtered(|| answer(libc::SYS_socket, c_long::from(libc::AF_UNIX)));
    assert_eq!(socket, libc::ESOCKTNOSUPPORT);
}

#[test]
fn sockets_are_told_apart_by_family_type_and_protocol() {
    let sockets = Sockets {
        calls: &[libc::SYS_socket],
        unspecified: false,
        streams: &[0],
        datagrams: &[0, libc::IPPROTO_UDP],
        netlink: &[libc::NETLINK_ROUTE],
    };
    let profile = Profile { allowed: PROFILE.allowed, conditional: &[], sockets: Some(sockets) };
    let asked = |call: c_long, family: c_int, kind: c_int, protocol: c_int| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                profile.install().unwrap();
                // SAFETY: no pointers; a socket stays open until the test ends.
                let made = unsafe { libc::syscall(call, family, kind, protocol, 0) };
                if made >= 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
            });
            thread.join().unwrap()
        })
    };
    let socket = |family, kind, protocol| asked(libc::SYS_socket, family, kind, protocol);
    for (family, kind, protocol) in [
        (libc::AF_UNIX, libc::SOCK_SEQPACKET, 0),
        (libc::AF_INET, libc::SOCK_STREAM, 0),
        (libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::IPPROTO_UDP),
        (libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0),
        (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
    ] {
        assert_eq!(socket(family, kind, protocol), 0, "{family} {kind} {protocol}");
    }
    // The kernel would let the host's root have all of them, or say that it has no such thing.
    for (family, kind, protocol) in [
        (libc::AF_UNSPEC, libc::SOCK_STREAM, 0),
        (libc::AF_PACKET, libc::SOCK_RAW, 0),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
        (libc::AF_INET, libc::SOCK_SEQPACKET, 0),
        // Pairs of which the kernel knows no protocol: it would look for a module.
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP),
        (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_TCP),
        (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
        (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
        (libc::AF_INET6, libc::SOCK_RAW, 0),
        (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP),
        (libc::AF_INET, 0, 0),
        (libc::AF_INET6, libc::SOCK_DCCP, 0),
        (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC),
        (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG),
    ] {
        assert_eq!(socket(family, kind, protocol), libc::EPERM, "{family} {kind} {protocol}");
    }
    assert_eq!(asked(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0), libc::EPERM);
}

#[test]
fn a_filter_that_the_kernel_does_not_take_is_an_error() {
    let refuses = Profile { allowed: PROFILE.allowed, conditional: &[], sockets: None };
    let second = filtered(|| refuses.install());
    let said = second.expect_err("the first filter does not let another one through");
    assert!(said.starts_with("failed to install the filter of system calls"), "{said}");
}
