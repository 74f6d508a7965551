//! The BPF program that leads a slot's connections to its gate, assembled here and loaded with bpf(2).
//!
//! It runs when the kernel looks for the socket that a packet of the namespace is for (`sk_lookup`):
//!
//! ```text
//! not IPv4, 127.0.0.0/8, 10.0.2.15   → look as usual: servers inside the sandbox
//! TCP                                → the gate's listening socket, for every address and port
//! UDP to 10.0.2.3, port 53           → look as usual: the gate's resolver is bound there
//! anything else                      → no socket: the kernel refuses at once
//! ```
//!
//! There is no compiler for BPF at the user's build, and a few dozen instructions need none. Each slot has a
//! program and a map (with the listening socket) of its own, kept alive by the link alone; closing the
//! link detaches it.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::{OWN_ADDRESS, RESOLVER_ADDRESS};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
const BPF_PROG_TYPE_SK_LOOKUP: u32 = 30;
const BPF_SK_LOOKUP: u32 = 36;

/// The part of the kernel's `union bpf_attr` that creates a map.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// The part of `union bpf_attr` that sets an element. Pointers are 64 bits wide on every architecture.
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` that loads a program, as far as it is used.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The part of `union bpf_attr` that attaches a program.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// Leads the connections of the namespace `netns` to `listener`, which must be a listening TCP socket in it. Lasts as
/// long as the descriptor that it gives.
///
/// # Errors
/// `EPERM` or `EINVAL` where the kernel does not let this process, or does not have this kind of program.
pub(crate) fn attach(netns: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let map = create_map()?;
    put_socket(&map, listener)?;
    let program = load(&program(&map))?;
    let link = LinkCreate {
        prog_fd: raw(&program),
        target_fd: netns.as_raw_fd().cast_unsigned(),
        attach_type: BPF_SK_LOOKUP,
        flags: 0,
    };
    bpf(BPF_LINK_CREATE, &link)
}

fn create_map() -> io::Result<OwnedFd> {
    let map = MapCreate {
        map_type: BPF_MAP_TYPE_SOCKMAP,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        map_flags: 0,
    };
    bpf(BPF_MAP_CREATE, &map)
}

fn put_socket(map: &OwnedFd, socket: BorrowedFd<'_>) -> io::Result<()> {
    let key: u32 = 0;
    let value = u64::from(socket.as_raw_fd().cast_unsigned());
    let update =
        MapUpdate { map_fd: raw(map), padding: 0, key: address(&key), value: address(&value), flags: 0 };
    // SAFETY: the attribute and what it points to (4 and 8 bytes, as the map was made) live through the
    // call, which only reads them.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw const update, size_of::<MapUpdate>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    let mut prog_name = [0; 16];
    for (slot, byte) in prog_name.iter_mut().zip(b"atoll_steer") {
        *slot = *byte;
    }
    let load = ProgLoad {
        prog_type: BPF_PROG_TYPE_SK_LOOKUP,
        insn_cnt: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        insns: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name,
        prog_ifindex: 0,
        expected_attach_type: BPF_SK_LOOKUP,
    };
    bpf(BPF_PROG_LOAD, &load)
}

/// A command that makes a descriptor. `attribute` must be the layout that the kernel has for `command`,
/// and the memory that it points to must live: all callers are above.
fn bpf<T>(command: libc::c_long, attribute: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes and takes the rest of its union for zero.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attribute), size_of::<T>()) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T>(of: &T) -> u64 {
    std::ptr::from_ref(of) as u64
}

// === the program ===

/// Offsets in the kernel's `struct bpf_sk_lookup`.
const FAMILY: i16 = 8;
const PROTOCOL: i16 = 12;
const LOCAL_IP4: i16 = 40;
const LOCAL_PORT: i16 = 60;

const MAP_LOOKUP_ELEM: i32 = 1;
const SK_RELEASE: i32 = 86;
const SK_ASSIGN: i32 = 124;

const AF_INET: i32 = 2;
const TCP: i32 = 6;
const UDP: i32 = 17;
const DNS_PORT: i32 = 53;
const LOOPBACK_NET: i32 = 127;

/// A register.
type Reg = u8;

/// Where a jump leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Drop,
    Steer,
}

/// Instructions with jumps to labels, resolved at the end.
#[derive(Default)]
struct Assembler {
    code: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    /// Encodes as the kernel's `struct bpf_insn` lies in memory, on either byte order.
    fn emit(&mut self, op: u8, dst: Reg, src: Reg, offset: i16, immediate: i32) {
        let registers = if cfg!(target_endian = "little") { dst | src << 4 } else { dst << 4 | src };
        let [o0, o1] = offset.to_ne_bytes();
        let [i0, i1, i2, i3] = immediate.to_ne_bytes();
        self.code.push(u64::from_ne_bytes([op, registers, o0, o1, i0, i1, i2, i3]));
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// `dst = src`
    fn mov(&mut self, dst: Reg, src: Reg) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    /// `dst = value`
    fn set(&mut self, dst: Reg, value: i32) {
        self.emit(0xb7, dst, 0, 0, value);
    }

    /// `dst = *(u32 *)(src + offset)`
    fn load(&mut self, dst: Reg, src: Reg, offset: i16) {
        self.emit(0x61, dst, src, offset, 0);
    }

    fn jump_if_eq(&mut self, reg: Reg, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0x15, reg, 0, 0, value);
    }

    fn jump_if_ne(&mut self, reg: Reg, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0x55, reg, 0, 0, value);
    }

    fn call(&mut self, function: i32) {
        self.emit(0x85, 0, 0, 0, function);
    }

    fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            // Every label is placed exactly once, a few instructions away.
            let Some(&(_, target)) = self.labels.iter().find(|(name, _)| *name == label) else { continue };
            let distance = i16::try_from(target.cast_signed() - at.cast_signed() - 1).unwrap_or(i16::MAX);
            let mut bytes = self.code[at].to_ne_bytes();
            bytes[2..4].copy_from_slice(&distance.to_ne_bytes());
            self.code[at] = u64::from_ne_bytes(bytes);
        }
        self.code
    }
}

/// An address as the number that the program compares with.
fn number(address: Ipv4Addr) -> i32 {
    u32::from(address).cast_signed()
}

fn program(map: &OwnedFd) -> Vec<u64> {
    let mut asm = Assembler::default();
    let (result, ctx, ip, work, socket, outcome, stack) = (0, 6, 2, 3, 7, 8, 10);
    asm.mov(ctx, 1);
    asm.load(work, ctx, FAMILY);
    asm.jump_if_ne(work, AF_INET, Label::Pass);
    asm.load(ip, ctx, LOCAL_IP4);
    asm.emit(0xdc, ip, 0, 0, 32); // From the network's byte order.
    asm.mov(work, ip);
    asm.emit(0x77, work, 0, 0, 24); // The first octet.
    asm.jump_if_eq(work, LOOPBACK_NET, Label::Pass);
    asm.jump_if_eq(ip, number(OWN_ADDRESS), Label::Pass);
    asm.load(work, ctx, PROTOCOL);
    asm.jump_if_eq(work, TCP, Label::Steer);
    asm.jump_if_ne(work, UDP, Label::Drop);
    asm.jump_if_ne(ip, number(RESOLVER_ADDRESS), Label::Drop);
    asm.load(work, ctx, LOCAL_PORT);
    asm.jump_if_eq(work, DNS_PORT, Label::Pass);
    asm.label(Label::Drop);
    asm.set(result, 0);
    asm.emit(0x95, 0, 0, 0, 0); // Exit.
    asm.label(Label::Steer);
    asm.emit(0x62, stack, 0, -4, 0); // The key 0, on the stack.
    asm.mov(2, stack);
    asm.emit(0x07, 2, 0, 0, -4);
    asm.emit(0x18, 1, 1, 0, map.as_raw_fd()); // The map; takes two slots.
    asm.emit(0, 0, 0, 0, 0);
    asm.call(MAP_LOOKUP_ELEM);
    asm.jump_if_eq(result, 0, Label::Drop);
    asm.mov(socket, result);
    asm.mov(1, ctx);
    asm.mov(2, socket);
    asm.set(3, 0);
    asm.call(SK_ASSIGN);
    asm.mov(outcome, result);
    asm.mov(1, socket);
    asm.call(SK_RELEASE);
    asm.jump_if_ne(outcome, 0, Label::Drop);
    asm.label(Label::Pass);
    asm.set(result, 1);
    asm.emit(0x95, 0, 0, 0, 0);
    asm.finish()
}
