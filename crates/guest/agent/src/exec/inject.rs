//! Makes system calls as another process, which stands still where it has just executed a program.
//!
//! Two bytes at its first instruction become `syscall`, the next a breakpoint; registers and bytes are put back afterwards.
#![expect(unsafe_code, reason = "ptrace has no safe wrapper")]

use std::ptr;

use libc::c_int;
use rustix::io::Errno;

use super::follow::trace;
use crate::sys;

/// `syscall`, and the breakpoint after it.
const CODE: [u8; 3] = [0x0f, 0x05, 0xcc];
/// The segment of 64-bit programs.
const CODE_SEGMENT_64: u64 = 0x33;
/// Arguments of calls are put this far below the first stack pointer of a program: the kernel has made 128 KiB there.
const SCRATCH_BELOW: u64 = 16 << 10;
/// Bytes for them.
const SCRATCH_BYTES: usize = 8 << 10;

/// A process that stands at its program's beginning.
pub(super) struct Stopped {
    pid: i32,
    /// As they were, and will be again.
    registers: libc::user_regs_struct,
    word: i64,
    /// Signals that came meanwhile.
    late: Vec<c_int>,
}

impl Stopped {
    /// Takes over a process that has stopped because it executes a program.
    ///
    /// # Errors
    /// [`Errno::SRCH`] when it is gone; [`Errno::NOEXEC`] for a program of 32 bits, whose calls are others.
    pub(super) fn new(pid: i32) -> Result<Self, Errno> {
        let mut late = Vec::new();
        // The kernel still writes the result of `execve` into a register: it stops again when it has.
        trace(libc::PTRACE_SYSCALL, pid, 0, 0)?;
        wait_for(pid, libc::SIGTRAP | 0x80, libc::PTRACE_SYSCALL, &mut late)?;
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        trace(libc::PTRACE_GETREGS, pid, 0, ptr::from_mut(&mut registers) as usize)?;
        if registers.cs != CODE_SEGMENT_64 {
            return Err(Errno::NOEXEC);
        }
        let word = peek(pid, registers.rip)?;
        let mut bytes = word.to_ne_bytes();
        bytes[..CODE.len()].copy_from_slice(&CODE);
        poke(pid, registers.rip, i64::from_ne_bytes(bytes))?;
        Ok(Self { pid, registers, word, late })
    }

    /// A place in its memory that nothing of it uses yet, filled with these bytes.
    pub(super) fn place(&self, bytes: &[u8]) -> Result<u64, Errno> {
        if bytes.len() > SCRATCH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let at = self.registers.rsp.saturating_sub(SCRATCH_BELOW) & !0xfff;
        for (address, chunk) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            poke(self.pid, address, i64::from_ne_bytes(word))?;
        }
        Ok(at)
    }

    /// Makes the process do a system call; gives the result of the call.
    pub(super) fn call(&mut self, number: libc::c_long, arguments: [u64; 5]) -> Result<i64, Errno> {
        let mut registers = self.registers;
        registers.rax = number.cast_unsigned();
        // No call that could be begun again after a signal.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] = arguments;
        trace(libc::PTRACE_SETREGS, self.pid, 0, ptr::from_mut(&mut registers) as usize)?;
        trace(libc::PTRACE_CONT, self.pid, 0, 0)?;
        wait_for(self.pid, libc::SIGTRAP, libc::PTRACE_CONT, &mut self.late)?;
        trace(libc::PTRACE_GETREGS, self.pid, 0, ptr::from_mut(&mut registers) as usize)?;
        if registers.rip != self.registers.rip + CODE.len() as u64 {
            return Err(Errno::FAULT);
        }
        let result = registers.rax.cast_signed();
        match i32::try_from(-result) {
            Ok(errno @ 1..=4095) => Err(Errno::from_raw_os_error(errno)),
            _ => Ok(result),
        }
    }

    /// Puts everything back.
    pub(super) fn restore(&mut self) -> Result<(), Errno> {
        poke(self.pid, self.registers.rip, self.word)?;
        trace(libc::PTRACE_SETREGS, self.pid, 0, ptr::from_mut(&mut self.registers) as usize)
    }

    /// Signals that came meanwhile, to be sent again.
    pub(super) fn late(&mut self) -> Vec<c_int> {
        std::mem::take(&mut self.late)
    }
}

/// Waits until it stops with the wanted signal; other signals are kept for later.
fn wait_for(pid: i32, wanted: c_int, again: libc::c_uint, late: &mut Vec<c_int>) -> Result<(), Errno> {
    loop {
        let mut status = 0;
        // SAFETY: a live number to be filled.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if waited < 0 {
            match sys::last_errno() {
                Errno::INTR => continue,
                other => return Err(other),
            }
        }
        if !libc::WIFSTOPPED(status) {
            return Err(Errno::SRCH);
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == 0 && signal == wanted {
            return Ok(());
        }
        if event == 0 && signal & 0x80 == 0 && signal != libc::SIGTRAP {
            late.push(signal);
        }
        trace(again, pid, 0, 0)?;
    }
}

fn peek(pid: i32, address: u64) -> Result<i64, Errno> {
    let mut word: i64 = 0;
    let (remote, local) = (libc::iovec { iov_base: address as *mut _, iov_len: 8 }, ptr::from_mut(&mut word));
    let local = libc::iovec { iov_base: local.cast(), iov_len: 8 };
    // SAFETY: the kernel writes 8 bytes into `word`, which lives; the other address is the other process's.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if read == 8 { Ok(word) } else { Err(Errno::FAULT) }
}

fn poke(pid: i32, address: u64, word: i64) -> Result<(), Errno> {
    let address = usize::try_from(address).or(Err(Errno::FAULT))?;
    let word = usize::try_from(word.cast_unsigned()).or(Err(Errno::FAULT))?;
    trace(libc::PTRACE_POKEDATA, pid, address, word)
}
