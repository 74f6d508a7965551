//! Packets: reading fields, writing answers.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Largest packet of a client, bytes.
pub(super) const PACKET_MAX_BYTES: usize = (256 << 10) + 1024;

/// Status codes.
pub(super) const OK: u32 = 0;
pub(super) const EOF: u32 = 1;
pub(super) const NO_SUCH_FILE: u32 = 2;
pub(super) const PERMISSION_DENIED: u32 = 3;
pub(super) const FAILURE: u32 = 4;
pub(super) const BAD_MESSAGE: u32 = 5;
pub(super) const UNSUPPORTED: u32 = 8;

const HAS_SIZE: u32 = 1;
const HAS_OWNER: u32 = 2;
const HAS_MODE: u32 = 4;
const HAS_TIMES: u32 = 8;

/// The packet is malformed.
#[derive(Debug)]
pub(super) struct Malformed;

/// Reads one packet: its type and the rest. `None` at the end of the stream.
pub(super) fn read_packet(stream: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length == 0 || length > PACKET_MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet)?;
    let kind = packet.remove(0);
    Ok(Some((kind, packet)))
}

/// The fields of a packet, in order.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk::<4>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk::<8>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*bytes))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u32()?).or(Err(Malformed))?;
        if length > self.0.len() {
            return Err(Malformed);
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn path(&mut self) -> Result<PathBuf, Malformed> {
        self.bytes().map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
    }

    pub(super) fn attributes(&mut self) -> Result<Attributes, Malformed> {
        let flags = self.u32()?;
        let mut attributes = Attributes::default();
        if flags & HAS_SIZE != 0 {
            attributes.size = Some(self.u64()?);
        }
        if flags & HAS_OWNER != 0 {
            attributes.owner = Some((self.u32()?, self.u32()?));
        }
        if flags & HAS_MODE != 0 {
            attributes.mode = Some(self.u32()? & 0o7777);
        }
        if flags & HAS_TIMES != 0 {
            attributes.times = Some((self.u32()?, self.u32()?));
        }
        // Extensions of attributes stand last and are not used.
        Ok(attributes)
    }
}

/// The attributes of a file that are to be changed.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) mode: Option<u32>,
    /// Last access and last modification, seconds.
    pub(super) times: Option<(u32, u32)>,
}

/// An answer that is being written.
#[derive(Debug)]
pub(super) struct Reply(Vec<u8>);

impl Reply {
    /// Begins an answer to a request.
    pub(super) fn new(kind: u8, request: u32) -> Self {
        let mut reply = Self::bare(kind);
        reply.put_u32(request);
        reply
    }

    /// Begins an answer without the number of a request.
    pub(super) fn bare(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    pub(super) fn put_u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn put_u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    /// The attributes of a file.
    pub(super) fn put_metadata(&mut self, metadata: &Metadata) {
        self.put_u32(HAS_SIZE | HAS_OWNER | HAS_MODE | HAS_TIMES);
        self.put_u64(metadata.size());
        self.put_u32(metadata.uid());
        self.put_u32(metadata.gid());
        self.put_u32(metadata.mode());
        self.put_u32(u32::try_from(metadata.atime()).unwrap_or_default());
        self.put_u32(u32::try_from(metadata.mtime()).unwrap_or_default());
    }

    /// No attributes.
    pub(super) fn put_no_metadata(&mut self) {
        self.put_u32(0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the content of another answer.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0[5..]);
    }

    /// The whole packet.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_bounded() {
        let read = |bytes: &[u8]| read_packet(&mut &bytes[..]);
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[0, 0, 0, 2, 1, 9]).unwrap(), Some((1, vec![9])));
        assert!(read(&[0, 0, 0, 0]).is_err());
        assert!(read(&[0xff, 0, 0, 0, 1]).is_err());
        assert!(read(&[0, 0, 0, 5, 1]).is_err());
    }

    #[test]
    fn fields_never_go_beyond() {
        assert!(Fields(&[0, 0, 0]).u32().is_err());
        assert!(Fields(&[0, 0, 0, 9, 1]).bytes().is_err());
        assert_eq!(Fields(&[0, 0, 0, 1, 7, 8]).bytes().unwrap(), [7]);
        assert!(Fields(&[0, 0, 0, 15, 0, 0]).attributes().is_err());
    }
}
