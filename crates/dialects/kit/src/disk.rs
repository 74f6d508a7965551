//! Files on the server's disk that are there as a whole or not at all, and random digits.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// 64 random hexadecimal digits.
///
/// # Errors
/// When the host has no randomness.
pub fn random() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
}

/// Makes names in a directory survive a power cut.
///
/// # Errors
/// What the file system says.
pub fn flush_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Writes a file, or replaces an older one: no reader finds half of it at any time.
///
/// # Errors
/// What the file system says.
pub fn save(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!("{name}.part"));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(beside, dir.join(name))?;
    flush_dir(dir)
}
