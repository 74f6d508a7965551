//! Where the fields of overlayfs lie: it may be a module, whose types are described in a file of its own.
//!
//! Of the kernel's format (BTF) this reads names and members of structures, nothing else.

use std::collections::HashMap;

use rustix::mount::{FsOpenFlags, fsopen};

/// Describes the kernel's own types.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// Describes those of overlayfs, where it is a module. It exists once the module is loaded.
const MODULE: &str = "/sys/kernel/btf/overlay";

const HEADER_BYTES: usize = 24;
const STRUCT: u32 = 4;
/// What the programs ask for, in the order of their `struct config`.
const FIELDS: [(&str, &str); 7] = [
    ("ovl_inode", "vfs_inode"),
    ("ovl_inode", "__upperdentry"),
    ("ovl_inode", "oe"),
    ("ovl_entry", "__lowerstack"),
    ("ovl_path", "layer"),
    ("ovl_path", "dentry"),
    ("ovl_layer", "idx"),
];

/// Where the fields of [`FIELDS`] lie.
pub(crate) type Offsets = [u32; 7];

/// The programs' `struct config`: with zeros where the kernel says nothing of overlayfs.
pub(crate) fn config(offsets: Option<Offsets>, wake_above: u64) -> Vec<u8> {
    if offsets.is_none() {
        tracing::warn!(
            "the kernel does not say where overlayfs keeps layers: origins of programs are not recorded"
        );
    }
    let mut bytes = u32::from(offsets.is_some()).to_ne_bytes().to_vec();
    bytes.extend(offsets.unwrap_or_default().iter().flat_map(|offset| offset.to_ne_bytes()));
    bytes.extend(wake_above.to_ne_bytes());
    bytes
}

/// Asks the kernel's description of its types.
pub(crate) fn offsets() -> Option<Offsets> {
    let kernel = std::fs::read(KERNEL).ok()?;
    let base = Types::parse(&kernel)?;
    find(&base, &[]).or_else(|| {
        // Asking for the file system loads its module, if nothing on this host has mounted one yet.
        drop(fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC));
        // Names in a module's file go on where the kernel's end.
        let module = std::fs::read(MODULE).ok()?;
        find(&Types::parse(&module)?, base.strings)
    })
}

fn find(types: &Types<'_>, before: &[u8]) -> Option<Offsets> {
    let mut found = HashMap::new();
    types.structures(|name, members| {
        let Some(structure) = FIELDS.iter().find(|(s, _)| text(name, before, types.strings) == s.as_bytes())
        else {
            return;
        };
        for member in members.chunks_exact(12) {
            let (name, bits) = (number(member, 0), number(member, 8) & 0xff_ffff);
            let field = text(name, before, types.strings);
            if let Some(place) = FIELDS.iter().position(|(s, f)| s == &structure.0 && f.as_bytes() == field) {
                found.insert(place, bits / 8);
            }
        }
    });
    let mut offsets = [0; 7];
    for (place, slot) in offsets.iter_mut().enumerate() {
        *slot = *found.get(&place)?;
    }
    Some(offsets)
}

/// The name at `offset` of the strings of the kernel and then of the module.
fn text<'a>(offset: u32, before: &'a [u8], strings: &'a [u8]) -> &'a [u8] {
    let offset = offset as usize;
    let rest = match offset.checked_sub(before.len()) {
        Some(own) => strings.get(own..),
        None => before.get(offset..),
    };
    rest.and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default()
}

struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Types<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        let section = |at: usize| {
            let from = number(header, 4) as usize + number(header, at) as usize;
            bytes.get(from..from.checked_add(number(header, at + 4) as usize)?)
        };
        Some(Self { types: section(8)?, strings: section(16)? })
    }

    /// Calls back with the name and the members of every structure.
    fn structures(&self, mut each: impl FnMut(u32, &[u8])) {
        let mut rest = self.types;
        while let (Some(head), Some(body)) = (rest.get(..12), rest.get(12..)) {
            let info = number(head, 4);
            let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
            let more = match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | 5 | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                _ => 0,
            };
            let Some(members) = body.get(..more) else { return };
            if kind == STRUCT {
                each(number(head, 0), members);
            }
            rest = &body[more..];
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}
