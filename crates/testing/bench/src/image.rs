//! A root file system with one program in it: `true`, 125 bytes, no C library, no linker.

use anyhow::Result;

/// An x86-64 ELF file whose whole program is `exit(0)`.
fn program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // xor edi, edi; mov al, 60; syscall
    const CODE: [u8; 6] = [0x31, 0xff, 0xb0, 0x3c, 0x0f, 0x05];
    let size = HEADERS + CODE.len() as u64;
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |elf: &mut Vec<u8>, value: u16| elf.extend(value.to_le_bytes());
    let word = |elf: &mut Vec<u8>, value: u32| elf.extend(value.to_le_bytes());
    let long = |elf: &mut Vec<u8>, value: u64| elf.extend(value.to_le_bytes());
    // Header: executable, x86-64, version, entry, program headers at 64, no sections.
    half(&mut elf, 2);
    half(&mut elf, 62);
    word(&mut elf, 1);
    long(&mut elf, BASE + HEADERS);
    long(&mut elf, 64);
    long(&mut elf, 0);
    word(&mut elf, 0);
    [64, 56, 1, 64, 0, 0].into_iter().for_each(|value| half(&mut elf, value));
    // One segment: load the whole file, readable and executable.
    word(&mut elf, 1);
    word(&mut elf, 5);
    [0, BASE, BASE, size, size, 0x1000].into_iter().for_each(|value| long(&mut elf, value));
    elf.extend(CODE);
    elf
}

/// The archive of a root file system that holds it as `/bin/true`.
pub(crate) fn rootfs() -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let program = program();
    let directories = ["bin/", "etc/", "tmp/"].map(|path| (path, tar::EntryType::Directory, &[][..]));
    let users = b"root:x:0:0:root:/:/bin/sh\n".as_slice();
    let files = [("bin/true", program.as_slice()), ("etc/passwd", users)]
        .map(|(path, content)| (path, tar::EntryType::Regular, content));
    for (path, kind, content) in directories.into_iter().chain(files) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, path, content)?;
    }
    Ok(archive.into_inner()?)
}
