//! The calls of bpf(2) that are needed, each with the kernel's own layout of its arguments.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const MAP_GET_FD_BY_ID: libc::c_long = 14;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BTF_LOAD: libc::c_long = 18;
const LINK_CREATE: libc::c_long = 28;

/// Bytes of the kernel's account of why it refused a program.
const LOG_BYTES: usize = 1 << 20;
/// Bytes of that account that are told: its end says it.
const LOG_TOLD_BYTES: usize = 600;

/// What a map is made as.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct MapSpec {
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    /// A map like those that this one will hold; 0 for none.
    pub(crate) inner_fd: u32,
    pub(crate) numa_node: u32,
    pub(crate) name: [u8; 16],
    pub(crate) ifindex: u32,
    pub(crate) btf_fd: u32,
    pub(crate) btf_key: u32,
    pub(crate) btf_value: u32,
}

#[repr(C)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
    btf_fd: u32,
    func_info_bytes: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}

#[repr(C)]
struct Pin {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct RawTracepoint {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct BtfLoad {
    btf: u64,
    log: u64,
    bytes: u32,
    log_bytes: u32,
    log_level: u32,
    /// Said to be zero: the kernel refuses anything else after the fields that it knows, and the compiler leaves what it pads.
    padding: u32,
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    bytes: u32,
    info: u64,
}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

/// A name as the kernel keeps it: at most fifteen bytes.
pub(crate) fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (slot, byte) in name.iter_mut().take(15).zip(text.bytes()) {
        *slot = byte;
    }
    name
}

/// Makes a map.
pub(crate) fn create_map(spec: &MapSpec) -> io::Result<OwnedFd> {
    fd(MAP_CREATE, spec)
}

/// Sets an element. `exclusive` fails with `EEXIST` where there is one. `key` and `value` must be as long as the map
/// was made for: the callers' own constants.
pub(crate) fn update(map: &OwnedFd, key: &[u8], value: &[u8], exclusive: bool) -> io::Result<()> {
    let element = Element { value: address(value), flags: u64::from(exclusive), ..element(map, key) };
    call(MAP_UPDATE_ELEM, &element).map(drop)
}

/// Reads an element into `value`; `false` when there is none.
pub(crate) fn look_up(map: &OwnedFd, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let element = Element { value: value.as_mut_ptr() as u64, ..element(map, key) };
    absent_is_false(call(MAP_LOOKUP_ELEM, &element))
}

/// Removes an element; `false` when there was none.
pub(crate) fn delete(map: &OwnedFd, key: &[u8]) -> io::Result<bool> {
    absent_is_false(call(MAP_DELETE_ELEM, &element(map, key)))
}

/// Puts the key after `key` (or the first) into `next`; `false` at the end.
pub(crate) fn next_key(map: &OwnedFd, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
    let element = Element {
        map_fd: raw(map),
        padding: 0,
        key: key.map_or(0, address),
        value: next.as_mut_ptr() as u64,
        flags: 0,
    };
    absent_is_false(call(MAP_GET_NEXT_KEY, &element))
}

fn element(map: &OwnedFd, key: &[u8]) -> Element {
    Element { map_fd: raw(map), padding: 0, key: address(key), value: 0, flags: 0 }
}

fn absent_is_false(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|_| true),
    }
}

/// What a program is loaded as.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: u32,
    pub(crate) attach_type: u32,
    /// The type that the tracepoint's arguments have; 0 for what is no tracepoint.
    pub(crate) attach_btf_id: u32,
    pub(crate) instructions: &'a [u8],
    pub(crate) license: &'a std::ffi::CStr,
}

/// Loads a program. When the kernel refuses it, the error has the end of its reasons.
pub(crate) fn load(program: &Program<'_>) -> io::Result<OwnedFd> {
    let count = u32::try_from(program.instructions.len() / 8).map_err(io::Error::other)?;
    let load = |log: &mut [u8]| {
        let attribute = ProgLoad {
            kind: program.kind,
            count,
            instructions: address(program.instructions),
            license: program.license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: u32::try_from(log.len()).unwrap_or(0),
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            name: name(program.name),
            attach_type: program.attach_type,
            attach_btf_id: program.attach_btf_id,
            ..ProgLoad::default()
        };
        fd(PROG_LOAD, &attribute)
    };
    match load(&mut []) {
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => {}
        loaded_or_forbidden => return loaded_or_forbidden,
    }
    let mut log = vec![0; LOG_BYTES];
    load(&mut log).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let told = String::from_utf8_lossy(&log[end.saturating_sub(LOG_TOLD_BYTES)..end]).into_owned();
        io::Error::new(error.kind(), format!("{error}: {}", told.replace('\n', "; ")))
    })
}

/// Attaches a tracepoint's program. The link ends with its last descriptor or pin.
pub(crate) fn attach_tracepoint(program: &OwnedFd) -> io::Result<OwnedFd> {
    fd(RAW_TRACEPOINT_OPEN, &RawTracepoint { name: 0, prog_fd: raw(program), padding: 0 })
}

/// Attaches a program to a cgroup and those below.
pub(crate) fn attach_cgroup(
    program: &OwnedFd,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let target_fd = cgroup.as_raw_fd().cast_unsigned();
    fd(LINK_CREATE, &LinkCreate { prog_fd: raw(program), target_fd, attach_type, flags: 0 })
}

/// Gives an object a name in a bpf file system, which keeps it.
pub(crate) fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    call(OBJ_PIN, &Pin { path: path.as_ptr() as u64, fd: raw(object), flags: 0 }).map(drop)
}

/// Opens what has a name there.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    fd(OBJ_GET, &Pin { path: path.as_ptr() as u64, fd: 0, flags: 0 })
}

/// Gives the kernel a description of types.
pub(crate) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let bytes = u32::try_from(btf.len()).map_err(io::Error::other)?;
    fd(BTF_LOAD, &BtfLoad { btf: address(btf), log: 0, bytes, log_bytes: 0, log_level: 0, padding: 0 })
}

/// A map by its number, as lookups in maps of maps give it.
pub(crate) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    fd(MAP_GET_FD_BY_ID, &ById { id, next: 0, flags: 0 })
}

/// A map's number, by which [`map_by_id`] finds it.
pub(crate) fn map_id(map: &OwnedFd) -> io::Result<u32> {
    /// What comes behind the type.
    const ID: usize = 1;
    let mut info = [0_u32; 2];
    get_info(map, &mut info)?;
    Ok(info[ID])
}

/// What a link says of itself.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct LinkInfo {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) program: u32,
    padding: u32,
    /// Of a cgroup's link: the cgroup, 0 when that is gone.
    pub(crate) cgroup: u64,
    rest: [u64; 8],
}

/// Asks a link about itself.
pub(crate) fn link_info(link: &OwnedFd) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    get_info(link, &mut info)?;
    Ok(info)
}

/// Bytes of a map's values.
pub(crate) fn value_bytes(map: &OwnedFd) -> io::Result<u32> {
    /// Type, number, bytes of keys, bytes of values: how `struct bpf_map_info` begins.
    const VALUE: usize = 3;
    let mut info = [0_u32; 4];
    get_info(map, &mut info)?;
    Ok(info[VALUE])
}

/// Most entries that a map was made for; of a ring, its bytes.
pub(crate) fn entries(map: &OwnedFd) -> io::Result<u32> {
    /// What comes behind the bytes of values.
    const ENTRIES: usize = 4;
    let mut info = [0_u32; 5];
    get_info(map, &mut info)?;
    Ok(info[ENTRIES])
}

/// How often the kernel did not run a program because it ran already on that processor.
pub(crate) fn missed(program: &OwnedFd) -> io::Result<u64> {
    /// Where `recursion_misses` lies in `struct bpf_prog_info`.
    const AT: usize = 208;
    let mut info = [0_u64; 32];
    get_info(program, &mut info)?;
    Ok(info[AT / 8])
}

fn get_info<T>(object: &OwnedFd, info: &mut T) -> io::Result<()> {
    let bytes = u32::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let attribute = InfoByFd { fd: raw(object), bytes, info: std::ptr::from_mut(info) as u64 };
    call(OBJ_GET_INFO_BY_FD, &attribute).map(drop)
}

/// A command that makes a descriptor.
fn fd<T>(command: libc::c_long, attribute: &T) -> io::Result<OwnedFd> {
    let fd = call(command, attribute)?;
    // SAFETY: the kernel made this descriptor for us and nobody else knows it: `command` is one of those that do.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `attribute` must have the layout that the kernel has for `command`, and what it points to must live and be as long as
/// the command says: all callers are above.
fn call<T>(command: libc::c_long, attribute: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes and takes the rest of its union for zero.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attribute), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

fn raw(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}
