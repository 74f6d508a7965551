//! The archive that a machine's kernel starts with: the guest agent as its first process, and the modules
//! that the kernel needs to find its disks and its port. In the format `newc` of cpio, as the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` describes it.

/// Mode of a directory, and of a program.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
/// What every member begins with.
const MAGIC: &str = "070701";
/// Places where the agent mounts things.
const DIRECTORIES: [&str; 7] = ["dev", "proc", "sys", "image", "disk", "root", "modules"];

/// Builds the archive. Modules are loaded in the order given.
pub(crate) fn build(agent: &[u8], modules: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.put(name, DIRECTORY, &[]);
    }
    archive.put("init", PROGRAM, agent);
    for (index, (name, module)) in modules.iter().enumerate() {
        archive.put(&format!("modules/{index:02}-{name}"), PROGRAM, module);
    }
    archive.put("TRAILER!!!", 0, &[]);
    archive.bytes
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    members: u32,
}

impl Archive {
    fn put(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.members += 1;
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // inode, mode, uid, gid, links, time, size, four device numbers, length of the name, checksum
        let fields = [self.members, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_reads_it() {
        use std::io::Write;
        let archive = build(b"agent", &[("a.ko".into(), vec![7; 5]), ("b.ko".into(), vec![])]);
        let dir = tempfile::tempdir().unwrap();
        let mut cpio = std::process::Command::new("cpio")
            .args(["-i", "--quiet", "--no-absolute-filenames"])
            .current_dir(dir.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&archive).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(std::fs::read(dir.path().join("init")).unwrap(), b"agent");
        assert_eq!(std::fs::read(dir.path().join("modules/00-a.ko")).unwrap(), [7; 5]);
        assert!(dir.path().join("modules/01-b.ko").is_file() && dir.path().join("proc").is_dir());
    }
}
