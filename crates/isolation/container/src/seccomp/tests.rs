//! The filter, executed here as the kernel executes it, call by call.

use std::path::Path;

use atoll_isolation_host::filter::UNKNOWN_FROM;

use super::docker::{DOCKER, OTHERS};
use super::{MPTCP, compile};

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// What is let through and Docker's profile refuses, with the reason.
const MORE: &[(&str, &str)] = &[
    ("clone3", "the agent starts commands in their cgroups with it; namespaces are forbidden by other means"),
    ("unshare", "without any flag of a namespace: descriptors and directories of a thread's own"),
];

/// What Docker's profile lets through and is refused or answered here, with the reason.
const LESS: &[(&str, &str)] = &[
    ("adjtimex", "nothing inside sets a clock, and who reads it has other calls"),
    ("clock_adjtime", "nothing inside sets a clock, and who reads it has other calls"),
    ("io_setup", "its slots are one number for the whole host"),
    ("io_destroy", "there is nothing to destroy without io_setup"),
    ("io_getevents", "there is nothing to get without io_setup"),
    ("io_pgetevents", "there is nothing to get without io_setup"),
    ("io_submit", "there is nowhere to submit to without io_setup"),
    ("io_cancel", "there is nothing to cancel without io_setup"),
    ("epoll_ctl_old", "no kernel has it"),
    ("epoll_wait_old", "no kernel has it"),
    ("get_thread_area", "no 64-bit kernel has it"),
    ("set_thread_area", "no 64-bit kernel has it"),
];

/// Executes the filter.
fn verdict(number: u32, arguments: [u64; 6]) -> u32 {
    verdict_of(ARCH, number, arguments)
}

fn verdict_of(architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [0_u32; 16];
    (data[0], data[1]) = (number, architecture);
    for (at, argument) in arguments.into_iter().enumerate() {
        data[4 + 2 * at] = u32::try_from(argument & 0xffff_ffff).unwrap();
        data[5 + 2 * at] = u32::try_from(argument >> 32).unwrap();
    }
    let program = compile().unwrap();
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let step = program[at];
        at += 1;
        let jump = |yes: bool| usize::from(if yes { step.jt } else { step.jf });
        match step.code {
            0x20 => accumulator = data[usize::try_from(step.k / 4).unwrap()],
            0x54 => accumulator &= step.k,
            0x05 => at += usize::try_from(step.k).unwrap(),
            0x15 => at += jump(accumulator == step.k),
            0x25 => at += jump(accumulator > step.k),
            0x35 => at += jump(accumulator >= step.k),
            0x45 => at += jump(accumulator & step.k != 0),
            0x06 => return step.k,
            code => panic!("instruction {code:#x}"),
        }
    }
}

fn plain(number: i64) -> u32 {
    verdict(u32::try_from(number).unwrap(), [0; 6])
}

fn errno(error: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.cast_unsigned()
}

#[test]
fn reachable_calls_are_those_of_docker_but_for_what_is_listed() {
    let has = |table: &[(&str, &str)], name: &str| table.iter().any(|(listed, _)| *listed == name);
    let mut wrong = Vec::new();
    for (name, number) in DOCKER {
        if (plain(*number) == ALLOW) == has(LESS, name) {
            wrong.push(*name);
        }
    }
    for (name, number) in OTHERS {
        if (plain(*number) == ALLOW) != has(MORE, name) {
            wrong.push(*name);
        }
    }
    assert!(wrong.is_empty(), "differs from Docker's profile without a listed reason, or no more: {wrong:?}");
    assert!(LESS.iter().all(|(name, _)| DOCKER.iter().any(|(known, _)| known == name)));
    assert!(MORE.iter().all(|(name, _)| OTHERS.iter().any(|(known, _)| known == name)));
}

#[test]
fn what_nobody_has_looked_at_does_not_exist() {
    assert!(DOCKER.iter().chain(OTHERS).all(|(_, number)| *number < i64::from(UNKNOWN_FROM)));
    for number in [UNKNOWN_FROM, 500, 1000, 0x4000_0000, 0x4000_0000 + 41, u32::MAX] {
        assert_eq!(verdict(number, [0; 6]), errno(libc::ENOSYS), "{number}");
    }
    // Holes in the numbers below are no calls, and 32-bit programs are not there.
    assert_eq!(verdict(400, [0; 6]), errno(libc::EPERM));
}

#[test]
fn another_architecture_is_let_through_nowhere() {
    // `AUDIT_ARCH_I386`, whose numbers mean other calls.
    for number in 0..UNKNOWN_FROM {
        assert_ne!(verdict_of(0x4000_0003, number, [0; 6]), ALLOW, "{number}");
    }
}

#[test]
fn arguments_count_where_they_lead_to_something_else() {
    let call = |number: libc::c_long, arguments: &[u64]| {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        verdict(u32::try_from(number).unwrap(), all)
    };
    let refused = errno(libc::EPERM);
    for namespace in [0x1000_0000, 0x2_0000, 0x2000_0000, 0x4000_0000, 0x800_0000, 0x400_0000, 0x200_0000_u64]
    {
        assert_eq!(call(libc::SYS_clone, &[namespace | 17]), refused, "{namespace:#x}");
        assert_eq!(call(libc::SYS_unshare, &[namespace]), refused, "{namespace:#x}");
    }
    assert_eq!(call(libc::SYS_unshare, &[0x80]), refused);
    assert_eq!(call(libc::SYS_unshare, &[0x400]), ALLOW);
    assert_eq!(call(libc::SYS_clone, &[0x3d_0f00]), ALLOW, "a thread");
    assert_eq!(call(libc::SYS_clone, &[0x120_0011]), ALLOW, "a process");
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        let answer = |family: u64, kind: u64, protocol: u64| call(number, &[family, kind, protocol]);
        for family in 0..64 {
            let there = [0, 1, 2, 10, 16].contains(&family);
            assert_eq!(answer(family, 1, 0) == ALLOW, there, "family {family}");
        }
        let streams: &[u64] = if Path::new(MPTCP).try_exists().unwrap() { &[0, 6, 262] } else { &[0, 6] };
        for (family, icmp) in [(2, 1), (10, 58)] {
            for protocol in 0..300 {
                let there = streams.contains(&protocol);
                assert_eq!(answer(family, 1, protocol) == ALLOW, there, "stream {protocol}");
                let there = [0, 17, icmp].contains(&protocol);
                assert_eq!(answer(family, 2, protocol) == ALLOW, there, "datagram {protocol}");
            }
            for kind in 0..16 {
                // With the flags of a descriptor, also.
                let there = [1, 2].contains(&kind);
                assert_eq!(answer(family, kind | 0o2_004_000, 0) == ALLOW, there, "type {kind}");
            }
        }
        for protocol in 0..32 {
            let there = [0, 2, 9, 15].contains(&protocol);
            assert_eq!(answer(16, 3, protocol) == ALLOW, there, "netlink {protocol}");
        }
        assert_eq!(answer(1, 5, 1), ALLOW);
    }
    assert_eq!(call(libc::SYS_personality, &[0xffff_ffff]), ALLOW);
    assert_eq!(call(libc::SYS_personality, &[0x4_0000]), refused);
}

#[test]
fn what_belongs_to_the_whole_host_is_not_to_be_had() {
    let call = |number: libc::c_long, arguments: [u64; 4]| {
        let [a, b, c, d] = arguments;
        verdict(u32::try_from(number).unwrap(), [a, b, c, d, 0, 0])
    };
    let (none, no_memory) = (errno(0), errno(libc::ENOMEM));
    assert_eq!(call(libc::SYS_io_setup, [128, 1, 0, 0]), errno(libc::ENOSYS));
    assert_eq!(call(libc::SYS_mmap, [0, 2 << 20, 3, 0x4_0022]), no_memory);
    assert_eq!(call(libc::SYS_mmap, [0, 2 << 20, 3, 0x22]), ALLOW);
    assert_eq!(call(libc::SYS_shmget, [0, 2 << 20, 0o5600, 0]), no_memory);
    assert_eq!(call(libc::SYS_shmget, [0, 2 << 20, 0o1600, 0]), ALLOW);
    assert_eq!(call(libc::SYS_memfd_create, [1, 4, 0, 0]), no_memory);
    assert_eq!(call(libc::SYS_memfd_create, [1, 1, 0, 0]), ALLOW);
    // The limit of core dumps cannot be changed, with any pointer; it can be read, and the other limits can be set.
    assert_eq!(call(libc::SYS_setrlimit, [4, 1, 0, 0]), none);
    assert_eq!(call(libc::SYS_setrlimit, [7, 1, 0, 0]), ALLOW);
    for pointer in [0x1000, 0x1_0000_0000, u64::MAX] {
        assert_eq!(call(libc::SYS_prlimit64, [0, 4, pointer, 0]), none, "{pointer:#x}");
        assert_eq!(call(libc::SYS_prlimit64, [0, 4, pointer, 0x1000]), errno(libc::EPERM), "{pointer:#x}");
        assert_eq!(call(libc::SYS_prlimit64, [0, 4, pointer, 1 << 32]), errno(libc::EPERM), "{pointer:#x}");
        assert_eq!(call(libc::SYS_prlimit64, [0, 7, pointer, 0]), ALLOW);
    }
    assert_eq!(call(libc::SYS_prlimit64, [0, 4, 0, 0x1000]), ALLOW);
}

#[test]
fn no_request_has_the_kernel_look_for_a_module() {
    let call = |number: libc::c_long, arguments: [u64; 3]| {
        let [a, b, c] = arguments;
        verdict(u32::try_from(number).unwrap(), [a, b, c, 0, 0, 0])
    };
    let refused = [0x5423, 0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983, 0x89a0, 0x89a1];
    for request in (0x5400..0x5500).chain(0x8900..0x8a00) {
        // The kernel does not look at the upper half.
        for upper in [0, 1 << 32, 0xffff_ffff << 32] {
            let expected = if refused.contains(&request) { errno(libc::EPERM) } else { ALLOW };
            assert_eq!(call(libc::SYS_ioctl, [3, request | upper, 0]), expected, "{request:#x} {upper:#x}");
        }
    }
    // TCP_AO_ADD_KEY, of TCP alone.
    assert_eq!(call(libc::SYS_setsockopt, [3, 6, 38]), errno(libc::ENOPROTOOPT));
    assert_eq!(call(libc::SYS_setsockopt, [3, 6 | (1 << 32), 38 | (1 << 32)]), errno(libc::ENOPROTOOPT));
    for (level, option) in [(1, 38), (6, 1), (6, 14), (6, 39), (0, 38), (41, 38)] {
        assert_eq!(call(libc::SYS_setsockopt, [3, level, option]), ALLOW, "{level} {option}");
    }
}

#[test]
fn the_filter_is_short() {
    // The kernel tries it with every number there is, in each sandbox.
    assert!(compile().unwrap().len() < 400, "{}", compile().unwrap().len());
}
