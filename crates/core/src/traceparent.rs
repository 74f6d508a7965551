//! Where work belongs in a caller's trace: the header `traceparent` of W3C Trace Context.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Length of the header's first version; later ones may go on after a `-`.
const BYTES: usize = 55;

/// A caller's span. The caller wrote it, so it cannot be relied on: it names a trace, and decides nothing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent {
    /// The trace; never all zeros.
    pub trace: [u8; 16],
    /// The caller's span; never all zeros.
    pub span: [u8; 8],
    /// Whether the caller keeps its trace. A caller that does not keep it wants no spans of other programs in it.
    pub sampled: bool,
}

/// Why a text is no such header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no traceparent as W3C Trace Context has it")]
pub struct NotATraceParent;

impl TryFrom<String> for TraceParent {
    type Error = NotATraceParent;

    fn try_from(text: String) -> Result<Self, NotATraceParent> {
        text.parse()
    }
}

impl From<TraceParent> for String {
    fn from(parent: TraceParent) -> Self {
        parent.to_string()
    }
}

/// Reads hexadecimal digits in lower case, as the standard wants them.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

impl FromStr for TraceParent {
    type Err = NotATraceParent;

    fn from_str(text: &str) -> Result<Self, NotATraceParent> {
        let mut parts = text.as_bytes().get(..BYTES).ok_or(NotATraceParent)?.split(|byte| *byte == b'-');
        let mut part = || parts.next().ok_or(NotATraceParent);
        let [version] = hex(part()?).ok_or(NotATraceParent)?;
        let trace: [u8; 16] = hex(part()?).ok_or(NotATraceParent)?;
        let span: [u8; 8] = hex(part()?).ok_or(NotATraceParent)?;
        let [flags] = hex(part()?).ok_or(NotATraceParent)?;
        // 0xff is no version. Fields after those of version 0 belong to later versions and are not read here.
        let ends = match version {
            0 => text.len() == BYTES,
            0xff => false,
            _ => matches!(text.as_bytes().get(BYTES), None | Some(b'-')),
        };
        if !ends || trace == [0; 16] || span == [0; 8] {
            return Err(NotATraceParent);
        }
        Ok(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_the_same() {
        let read: TraceParent = GOOD.parse().unwrap();
        assert!(read.sampled && read.trace[0] == 0x4b && read.span[7] == 0xb7);
        assert_eq!(read.to_string(), GOOD);
        let unsampled: TraceParent = GOOD.replace("-01", "-fe").parse().unwrap();
        assert!(!unsampled.sampled);
        // A later version may say more.
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(later.parse(), Ok(read));
        assert_eq!(format!("{later}-what-the-future-will-be-like").parse(), Ok(read));
    }

    #[test]
    fn all_else_is_none() {
        let bad = [
            String::new(),
            "x".repeat(100_000),
            GOOD[..54].to_owned(),
            format!("{GOOD}-more"),
            format!("{GOOD}0"),
            GOOD.replacen("00", "ff", 1),
            GOOD.to_uppercase(),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace('-', "_"),
            GOOD.replacen('4', "é", 1),
            GOOD.replacen("00-4", "cc-4", 1) + "x",
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceParent>(), Err(NotATraceParent), "{text:.80}");
        }
    }
}
