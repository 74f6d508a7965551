//! The instructions that filters are made of, and what the kernel shows them.

use libc::sock_filter;

/// What the kernel gives a filter, `struct seccomp_data`: offset of the call's number, bytes.
pub const NUMBER: u32 = 0;
/// Offset of the architecture, bytes.
pub const ARCHITECTURE: u32 = 4;
/// This architecture, `AUDIT_ARCH_X86_64`.
pub const X86_64: u32 = 0xc000_003e;

/// `BPF_LD | BPF_W | BPF_ABS`.
pub const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JA`.
pub const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub const JUMP_IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
pub const JUMP_IF_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JSET | BPF_K`.
pub const JUMP_IF_ANY_BIT: u16 = 0x45;
/// `BPF_ALU | BPF_AND | BPF_K`.
pub const AND: u16 = 0x54;
/// `BPF_RET | BPF_K`.
pub const RETURN: u16 = 0x06;

/// Offset of an argument's lower half, bytes.
#[must_use]
pub const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

/// Offset of an argument's upper half, bytes.
#[must_use]
pub const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// The answer that makes a call fail with this error.
#[must_use]
pub const fn errno(error: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.cast_unsigned()
}

/// One instruction.
#[must_use]
pub const fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
