//! Calls that are answered with something else than "not permitted", or only with some arguments.

use atoll_isolation_host::filter::instruction::{
    JUMP_IF_ANY_BIT, JUMP_IF_EQUAL, LOAD, NUMBER, RETURN, errno, high, low, step,
};
use atoll_isolation_host::filter::unknown;
use libc::sock_filter;

/// A question about what a call was made with.
#[derive(Debug, Clone, Copy)]
enum Test {
    /// The four bytes at an offset are this number.
    Is(u32, u32),
    /// They have one of these bits.
    HasAny(u32, u32),
}

/// Not of libc for all targets: a file of huge pages without a file system.
const MFD_HUGETLB: u32 = 4;
const HUGE_SEGMENT: u32 = 0o4000;
const HUGE_MAPPING: u32 = 0x4_0000;
/// The limit of a core dump's size.
const CORE: u32 = 4;
/// A call that libc has no name for.
const IO_PGETEVENTS: libc::c_long = 333;
/// Every bit of half a pointer.
const ALL: u32 = u32::MAX;

/// Requests of `ioctl` for which the kernel loads a module, whatever rights the process has (`net/socket.c`,
/// `drivers/tty/tty_ldisc.c`): line disciplines of terminals, bridges, VLANs, and frame relay in kernels before 5.13.
const LOADING_REQUESTS: [u32; 9] = [
    0x5423, // TIOCSETD
    0x8940, // SIOCGIFBR
    0x8941, // SIOCSIFBR
    0x8980, // SIOCADDDLCI
    0x8981, // SIOCDELDLCI
    0x8982, // SIOCGIFVLAN
    0x8983, // SIOCSIFVLAN
    0x89a0, // SIOCBRADDBR
    0x89a1, // SIOCBRDELBR
];
/// The option of TCP that names an algorithm of the kernel's cryptography, by which that is loaded (since Linux 6.7).
const TCP_AO_ADD_KEY: u32 = 38;
/// The level of options of TCP.
const TCP: u32 = libc::IPPROTO_TCP.cast_unsigned();

/// The calls that [`answers`] concerns and that are let through otherwise.
pub(super) const LET_THROUGH_OTHERWISE: [libc::c_long; 7] = [
    libc::SYS_ioctl,
    libc::SYS_mmap,
    libc::SYS_shmget,
    libc::SYS_memfd_create,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_setsockopt,
];
/// The calls that do not exist inside. Of asynchronous I/O: there is one number of slots for the whole host. Programs fall
/// back, as where the kernel was built without it.
pub(super) const MISSING: [libc::c_long; 6] = [
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_submit,
    libc::SYS_io_cancel,
    IO_PGETEVENTS,
];

/// Whether [`answers`] has something to say of a call.
pub(super) fn concerns(call: libc::c_long) -> bool {
    LET_THROUGH_OTHERWISE.contains(&call)
}

/// The instructions: they end with an answer, or go on with what follows them.
pub(super) fn answers() -> Vec<sock_filter> {
    let mut program = unknown().to_vec();
    program.extend(refuse_requests());
    // As where the kernel was built without it.
    let names_an_algorithm = [Test::Is(low(1), TCP), Test::Is(low(2), TCP_AO_ADD_KEY)];
    program.extend(answer(libc::SYS_setsockopt, &names_an_algorithm, libc::ENOPROTOOPT));
    // One reserve for the whole host: here it is empty.
    program.extend(answer(libc::SYS_mmap, &[Test::HasAny(low(3), HUGE_MAPPING)], libc::ENOMEM));
    program.extend(answer(libc::SYS_shmget, &[Test::HasAny(low(2), HUGE_SEGMENT)], libc::ENOMEM));
    program.extend(answer(libc::SYS_memfd_create, &[Test::HasAny(low(1), MFD_HUGETLB)], libc::ENOMEM));
    // Sandboxes have the limit 1, which alone keeps the kernel from starting the host's helper: even 0, which a process
    // could set, does not. There are no core dumps, whatever limit a process asks for, so the filter answers such a
    // request with "done".
    program.extend(answer(libc::SYS_setrlimit, &[Test::Is(low(0), CORE)], 0));
    for half in [low(2), high(2)] {
        let sets = [Test::Is(low(1), CORE), Test::HasAny(half, ALL)];
        let only_sets = [sets[0], sets[1], Test::Is(low(3), 0), Test::Is(high(3), 0)];
        program.extend(answer(libc::SYS_prlimit64, &only_sets, 0));
        program.extend(answer(libc::SYS_prlimit64, &sets, libc::EPERM));
    }
    program
}

/// Refuses [`LOADING_REQUESTS`]. The kernel looks at the lower half of a request's number only.
fn refuse_requests() -> Vec<sock_filter> {
    let number = u32::try_from(libc::SYS_ioctl).unwrap_or(u32::MAX);
    let count = u8::try_from(LOADING_REQUESTS.len()).unwrap_or(u8::MAX);
    let mut program = vec![
        step(LOAD, NUMBER, 0, 0),
        step(JUMP_IF_EQUAL, number, 0, count.saturating_add(2)),
        step(LOAD, low(1), 0, 0),
    ];
    // The last one of them decides between the answer and what follows it.
    for (left, request) in (0..count).rev().zip(LOADING_REQUESTS) {
        program.push(step(JUMP_IF_EQUAL, request, left, u8::from(left == 0)));
    }
    program.push(step(RETURN, errno(libc::EPERM), 0, 0));
    program
}

/// Answers one call with an error (0: with success, and nothing is done) when all tests hold.
fn answer(call: libc::c_long, tests: &[Test], error: libc::c_int) -> Vec<sock_filter> {
    let number = u32::try_from(call).unwrap_or(u32::MAX);
    // Two instructions for each question, the number's among them, and one for the answer.
    let mut left = u8::try_from(2 * tests.len() + 1).unwrap_or(u8::MAX);
    let mut program = vec![step(LOAD, NUMBER, 0, 0), step(JUMP_IF_EQUAL, number, 0, left)];
    for test in tests {
        left -= 2;
        let (offset, jump, value) = match *test {
            Test::Is(offset, value) => (offset, JUMP_IF_EQUAL, value),
            Test::HasAny(offset, bits) => (offset, JUMP_IF_ANY_BIT, bits),
        };
        program.extend([step(LOAD, offset, 0, 0), step(jump, value, 0, left)]);
    }
    program.push(step(RETURN, errno(error), 0, 0));
    program
}
