//! The output of a sandbox's execs as one stream of bytes: to pack it, and to unpack what comes.
//!
//! ```text
//! { u16 length, "EXEC/FILE", u64 length, bytes }*
//! ```
//!
//! Numbers are little-endian, execs come in the order of their ids. So what was there at an earlier time comes first in the same
//! bytes, and is not sent again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use atoll_core::id::ExecId;

/// Longest name of a file, with its exec, bytes.
const NAME_MAX_BYTES: usize = 128;

/// Reads a directory of logs as a stream.
pub(super) struct Packing {
    files: std::vec::IntoIter<(String, PathBuf)>,
    /// What comes before the file, and how much of it was read.
    head: io::Cursor<Vec<u8>>,
    file: Option<io::Take<File>>,
}

impl Packing {
    /// All logs below `dir`, which need not be there.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for (name, path) in entries(dir)? {
            if name.parse::<ExecId>().is_ok() {
                let of_exec = entries(&path)?.into_iter().filter(|(file, _)| is_file_name(file));
                files.extend(of_exec.map(|(file, path)| (format!("{name}/{file}"), path)));
            }
        }
        files.sort();
        Ok(Self { files: files.into_iter(), head: io::Cursor::default(), file: None })
    }
}

fn entries(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let list = match fs::read_dir(dir) {
        // It may go meanwhile: what is kept of output is bounded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in list {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str() {
            found.push((name.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

/// As the module `log` names them.
fn is_file_name(name: &str) -> bool {
    let stem = name.strip_suffix(".data").or_else(|| name.strip_suffix(".idx"));
    stem.is_some_and(|stem| {
        stem.len() == 16 && stem.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Read for Packing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.head.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            if let Some(file) = &mut self.file {
                let read = file.read(into)?;
                if read > 0 || into.is_empty() {
                    return Ok(read);
                }
                if file.limit() > 0 {
                    return Err(io::Error::other("a log became shorter"));
                }
                self.file = None;
            }
            let Some((name, path)) = self.files.next() else { return Ok(0) };
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let bytes = file.metadata()?.len();
            let mut head = Vec::with_capacity(name.len() + 10);
            head.extend_from_slice(&u16::try_from(name.len()).map_err(io::Error::other)?.to_le_bytes());
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(&bytes.to_le_bytes());
            self.head = io::Cursor::new(head);
            self.file = Some(file.take(bytes));
        }
    }
}

/// Writes what [`Packing`] gave, `bytes` long, into a directory that is made for it, down to the disk: the copy that it comes
/// from may be removed as soon as this node has it. Blocks.
pub(super) fn unpack(mut stream: impl Read, bytes: u64, dir: &Path) -> io::Result<()> {
    let wrong = || io::Error::other("these are no logs");
    fs::create_dir(dir)?;
    let mut left = bytes;
    while left > 0 {
        let mut len = [0; 2];
        stream.read_exact(&mut len)?;
        let len = usize::from(u16::from_le_bytes(len));
        if len > NAME_MAX_BYTES {
            return Err(wrong());
        }
        let mut name = vec![0; len];
        stream.read_exact(&mut name)?;
        let name = String::from_utf8(name).map_err(io::Error::other)?;
        let (exec, file) = name.split_once('/').ok_or_else(wrong)?;
        if exec.parse::<ExecId>().is_err() || !is_file_name(file) {
            return Err(wrong());
        }
        let mut size = [0; 8];
        stream.read_exact(&mut size)?;
        let size = u64::from_le_bytes(size);
        left = left.checked_sub(len as u64 + 10).and_then(|left| left.checked_sub(size)).ok_or_else(wrong)?;
        fs::create_dir_all(dir.join(exec))?;
        let mut to = File::create_new(dir.join(exec).join(file))?;
        if io::copy(&mut stream.by_ref().take(size), &mut to)? != size {
            return Err(wrong());
        }
        to.sync_all()?;
        sync_dir(&dir.join(exec))?;
    }
    sync_dir(dir)
}

/// Puts the names in a directory to disk. Blocks.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_come_out_as_they_went_in() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let exec = |number| from.join(ExecId::from_parts(number, number).as_str());
        for number in 1..3 {
            fs::create_dir_all(exec(number)).unwrap();
            let content = vec![u8::try_from(number).unwrap(); 100_000];
            fs::write(exec(number).join("0000000000000000.data"), content).unwrap();
            fs::write(exec(number).join("0000000000000000.idx"), []).unwrap();
        }
        // What is no log stays.
        fs::write(exec(1).join("other"), "x").unwrap();
        fs::create_dir(from.join("other")).unwrap();
        let mut packed = Vec::new();
        Packing::open(&from).unwrap().read_to_end(&mut packed).unwrap();
        let to = dir.path().join("to");
        unpack(packed.as_slice(), packed.len() as u64, &to).unwrap();
        let mut again = Vec::new();
        Packing::open(&to).unwrap().read_to_end(&mut again).unwrap();
        assert!(again == packed && packed.len() > 200_000, "{} bytes", packed.len());
        // Cut off anywhere, and with names that lead elsewhere, it is refused.
        for cut in [1, 30, 70_000] {
            let place = dir.path().join(format!("cut{cut}"));
            assert!(unpack(&packed[..cut], packed.len() as u64, &place).is_err());
        }
        let hostile = packed.iter().map(|byte| if *byte == b'/' { b'.' } else { *byte });
        let hostile: Vec<u8> = hostile.collect();
        assert!(unpack(hostile.as_slice(), hostile.len() as u64, &dir.path().join("hostile")).is_err());
        let mut nothing = Vec::new();
        Packing::open(&dir.path().join("nothing")).unwrap().read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());
    }
}
