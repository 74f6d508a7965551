//! Hostile layers, found by coverage: `make fuzz`. Each runs shortly with the other tests, too.
//!
//! Bytes alone would hardly ever be a header with a right checksum. So the fuzzer says what stands in the fields, and the
//! archive is put together here.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use bolero::{TypeGenerator, check};

use super::apply::Applier;
use super::tar_reader::{BLOCK, TarReader};

/// A header and what follows it.
#[derive(Debug, Clone, TypeGenerator)]
struct Entry {
    name: Vec<u8>,
    kind: u8,
    link: Vec<u8>,
    /// Another size than the content has.
    size: Option<u64>,
    mode: u32,
    /// Bytes for everything behind the checksum's fields: sparse maps, device numbers.
    rest: Vec<u8>,
    content: Vec<u8>,
}

impl Entry {
    fn write(&self, archive: &mut Vec<u8>) {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, most: usize, bytes: &[u8]| {
            let length = bytes.len().min(most);
            header[at..at + length].copy_from_slice(&bytes[..length]);
        };
        put(257, 255, &self.rest);
        put(0, 100, &self.name);
        put(100, 8, format!("{:07o}", self.mode & 0o777_7777).as_bytes());
        put(108, 8, b"0000000");
        put(116, 8, b"0000000");
        put(
            124,
            12,
            format!("{:011o}", self.size.unwrap_or(self.content.len() as u64) & 0o777_7777_7777).as_bytes(),
        );
        put(136, 12, b"00000000000");
        put(148, 8, b"        ");
        put(156, 1, &[self.kind]);
        put(157, 100, &self.link);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(&self.content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    entries.iter().for_each(|entry| entry.write(&mut archive));
    archive
}

#[test]
fn archives_are_read_to_an_end() {
    check!().with_type::<Vec<Entry>>().for_each(|entries| {
        let archive = archive(entries);
        let mut tar = TarReader::new(archive.as_slice());
        let mut members = 0;
        while let Ok(Some(member)) = tar.next() {
            members += 1;
            assert!(members <= archive.len() / BLOCK, "an entry takes a block at least");
            assert!(member.path.len() <= archive.len() && member.link.len() <= archive.len());
            if let Some(map) = &member.sparse {
                assert!(
                    map.iter()
                        .all(|one| one.offset.checked_add(one.bytes).is_some_and(|end| end <= member.size))
                );
            }
            drop((&mut tar).take(1 << 16).read_to_end(&mut Vec::new()));
        }
    });
}

#[test]
fn any_bytes_are_read_to_an_end() {
    check!().for_each(|bytes: &[u8]| {
        let mut tar = TarReader::new(bytes);
        while let Ok(Some(_)) = tar.next() {}
    });
}

/// Everything below a directory, with sizes, links not followed.
fn tree(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        let about = entry.metadata().unwrap();
        found.push(format!("{:?} {} {:?}", entry.path(), about.len(), about.permissions()));
        if about.is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found.sort();
    found
}

fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

#[test]
fn nothing_is_written_beside_the_tree() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let lower = outside.path().join("lower");
    fs::create_dir_all(lower.join("a/b")).unwrap();
    // A layer below, with links that lead out of every tree.
    std::os::unix::fs::symlink("..", lower.join("up")).unwrap();
    std::os::unix::fs::symlink(outside.path(), lower.join("a/out")).unwrap();
    let before = tree(outside.path());
    let place = tempfile::tempdir().unwrap();
    check!().with_type::<Vec<Entry>>().for_each(|entries| {
        let upper = tempfile::tempdir_in(place.path()).unwrap();
        let archive = archive(entries);
        let lowers = [open(&lower)];
        let mut applier = Applier::new(open(upper.path()), &lowers, 1 << 16);
        let mut tar = TarReader::new(archive.as_slice());
        while let Ok(Some(member)) = tar.next() {
            if applier.apply(&member, &mut tar).is_err() {
                break;
            }
        }
        drop(applier.finish());
        assert_eq!(tree(outside.path()), before);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        // Owners and modes may be anything: root removes it.
        drop(upper);
    });
}
