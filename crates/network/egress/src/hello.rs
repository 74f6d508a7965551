//! Reads the server name out of a TLS hello.
//!
//! A hello is one handshake message, spread over one or more records. Everything is bounded by the bytes
//! at hand; nothing is believed beyond them.

/// The content of the first bytes of a TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hello {
    /// More bytes are needed.
    Incomplete,
    /// No hello that can be read.
    Broken,
    /// A hello, with the server name if it has one.
    Complete(Option<String>),
}

const RECORD_HANDSHAKE: u8 = 22;
const RECORD_MAX_BYTES: usize = (16 << 10) + 256;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const NAME_TYPE_HOST: u8 = 0;

/// Whether bytes begin as a TLS record does: a known type, then version 3.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=24] | [20..=24, 3, ..])
}

/// Reads the bytes that are there.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        // However much of another message is there: it does not become a hello.
        if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Hello::Broken;
        }
        match wanted(&message) {
            Some(length) if message.len() >= length => return parse(&message[..length]),
            Some(_) | None => {}
        }
        let [kind, 3, _, high, low, tail @ ..] = rest else {
            // Five bytes that do not fit the pattern are no record.
            return if rest.len() < 5 && (rest.len() < 2 || rest[1] == 3) {
                Hello::Incomplete
            } else {
                Hello::Broken
            };
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != RECORD_HANDSHAKE || length == 0 || length > RECORD_MAX_BYTES {
            return Hello::Broken;
        }
        message.extend_from_slice(&tail[..length.min(tail.len())]);
        if tail.len() < length {
            return match wanted(&message) {
                Some(whole) if message.len() >= whole => parse(&message[..whole]),
                _ if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) => Hello::Broken,
                _ => Hello::Incomplete,
            };
        }
        rest = &tail[length..];
    }
}

/// Length of the handshake message with its own header, once that is there.
fn wanted(message: &[u8]) -> Option<usize> {
    let [_, a, b, c, ..] = message else { return None };
    Some(4 + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)))
}

/// Walks through bytes; every step is `None` beyond the end.
struct Walk<'a>(&'a [u8]);

impl<'a> Walk<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u8(&mut self) -> Option<usize> {
        self.take(1).map(|bytes| usize::from(bytes[0]))
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A run of bytes with its length in front, in one or two bytes.
    fn run8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length)
    }

    fn run16(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.u16()?);
        self.take(length)
    }
}

fn parse(message: &[u8]) -> Hello {
    parse_hello(message).map_or(Hello::Broken, Hello::Complete)
}

/// `None` is a message that breaks its own form.
fn parse_hello(message: &[u8]) -> Option<Option<String>> {
    let mut walk = Walk(message);
    if walk.u8()? != usize::from(CLIENT_HELLO) {
        return None;
    }
    walk.take(3 + 2 + 32)?; // Length, version, random.
    walk.run8()?; // Session.
    walk.run16()?; // Cipher suites.
    walk.run8()?; // Compression.
    if walk.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Walk(walk.run16()?);
    let mut found: Option<Option<String>> = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let body = extensions.run16()?;
        if kind == EXTENSION_SERVER_NAME {
            // Twice is forbidden, and a way to say one name to us and another to the server.
            if found.is_some() {
                return None;
            }
            found = Some(server_name(body)?);
        }
    }
    Some(found.flatten())
}

/// The list of names has at most one of each type, and there is only one type.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let mut walk = Walk(body);
    let mut list = Walk(walk.run16()?);
    let kind = list.u8()?;
    let name = list.run16()?;
    let alone = list.0.is_empty() && walk.0.is_empty() && kind == usize::from(NAME_TYPE_HOST);
    let name = std::str::from_utf8(name).ok()?;
    alone.then(|| Some(name.to_owned()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hello with these extensions.
    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[1, length[1], length[2], length[3]], body.as_slice()].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        let length = |extra: usize| u16::try_from(name.len() + extra).unwrap().to_be_bytes();
        [&[0, 0][..], &length(5), &length(3), &[0], &length(0), name.as_bytes()].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            let length = u16::try_from(part.len()).unwrap().to_be_bytes();
            [&[22, 3, 1, length[0], length[1]], part].concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    pub(crate) fn hello(name: &str) -> Vec<u8> {
        records(&message(&sni(name)), 4096)
    }

    #[test]
    fn the_name_is_found_whole_and_in_fragments() {
        let want = Hello::Complete(Some("a.example".to_owned()));
        let message = message(&[&[0, 0x17, 0, 0], sni("a.example").as_slice()].concat());
        for size in [1, 2, 3, 5, 17, 4096] {
            let bytes = records(&message, size);
            assert_eq!(read(&bytes), want, "records of {size}");
            for cut in 0..bytes.len() {
                let part = read(&bytes[..cut]);
                assert!(part == Hello::Incomplete || part == want, "{cut}: {part:?}");
            }
        }
        assert_eq!(read(&records(&self::message(&[]), 99)), Hello::Complete(None));
    }

    #[test]
    fn broken_ones_have_no_name() {
        let twice = [sni("a.example"), sni("b.example")].concat();
        let mut two_names = sni("ab");
        two_names[8] = 9;
        for extensions in [twice, two_names, vec![0, 0, 0, 0], vec![0, 0, 0, 9, 1], vec![9]] {
            assert_eq!(read(&records(&message(&extensions), 4096)), Hello::Broken, "{extensions:?}");
        }
        for bytes in [&b"GET / HTTP/1.1"[..], &[22, 3, 1, 0, 0], &[22, 2, 0, 0, 1], &[21, 3, 1, 0, 2, 2, 40]]
        {
            assert_eq!(read(bytes), Hello::Broken);
        }
        // A server hello is none, in however small pieces it comes.
        let server_hello = [22, 3, 1, 0, 1, 2, 22, 3, 1, 0, 1, 0];
        for end in 6..=server_hello.len() {
            assert_eq!(read(&server_hello[..end]), Hello::Broken, "{end} bytes");
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm() {
        let good = hello("a.example");
        for at in 0..good.len() {
            for value in [0, 1, 127, 255] {
                let mut bytes = good.clone();
                bytes[at] = value;
                drop(read(&bytes));
            }
        }
    }
}
