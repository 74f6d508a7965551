//! Bodies in signed chunks (`STREAMING-AWS4-HMAC-SHA256-PAYLOAD`):
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html>.
//!
//! ```text
//! 10000;chunk-signature=ad80…648\r\n  65536 bytes  \r\n
//! …
//! 0;chunk-signature=b6c6…7a9\r\n\r\n
//! ```

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::sign::Chain;

/// The value of the content header for such a body.
pub(super) const SAID: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// Bytes of the line before a chunk.
const LINE_MAX_BYTES: u64 = 128;

/// Writes the content of the chunks in `from` to `to`. Gives its SHA-256; `None` where the form or a signature is
/// wrong. Blocks.
///
/// # Errors
/// When the disk fails.
pub(super) fn unwrap(from: &Path, to: &Path, mut chain: Chain) -> io::Result<Option<String>> {
    let mut reader = BufReader::new(File::open(from)?);
    let mut writer = BufWriter::new(File::create(to)?);
    let mut whole = Sha256::new();
    loop {
        let mut line = String::new();
        match reader.by_ref().take(LINE_MAX_BYTES).read_line(&mut line) {
            Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(error),
            Err(_) | Ok(0) => return Ok(None),
            Ok(_) => {}
        }
        let parts = line.strip_suffix("\r\n").and_then(|line| line.split_once(";chunk-signature="));
        let Some((Ok(len), signature)) = parts.map(|(len, signed)| (u64::from_str_radix(len, 16), signed))
        else {
            return Ok(None);
        };
        let mut hasher = Sha256::new();
        let mut block = [0_u8; 16 << 10];
        let mut left = len;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(block.len()).min(block.len());
            let read = reader.read(&mut block[..most])?;
            if read == 0 {
                return Ok(None);
            }
            hasher.update(&block[..read]);
            whole.update(&block[..read]);
            writer.write_all(&block[..read])?;
            left -= read as u64;
        }
        let mut end = [0_u8; 2];
        let closed = reader.read_exact(&mut end).is_ok() && end == *b"\r\n";
        if !closed || !chain.is_next(&hex::encode(hasher.finalize()), signature) {
            return Ok(None);
        }
        if len == 0 {
            writer.flush()?;
            let is_all = reader.read(&mut end)? == 0;
            return Ok(is_all.then(|| hex::encode(whole.finalize())));
        }
    }
}
