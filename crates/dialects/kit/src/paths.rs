//! Paths inside a sandbox as clients write them, and the homes at which some of them begin.

use atoll_core::{Code, Error};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::Read;

/// Bytes of `/etc/passwd` that are read.
const PASSWD_MAX_BYTES: u64 = 1 << 20;

/// A sandbox's `/etc/passwd`. The text is hostile: it is to be used only for paths inside the sandbox.
#[derive(Debug, Clone)]
pub struct Passwd(String);

/// What it says of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User<'a> {
    /// An absolute path; `None` when the entry has none.
    pub home: Option<&'a str>,
}

impl From<String> for Passwd {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Passwd {
    /// Reads it, at most its first mebibyte. An image without the file has an empty one.
    ///
    /// # Errors
    /// The guest's errors.
    pub async fn read(guest: &GuestLease) -> Result<Self, Error> {
        let request = Read { path: "/etc/passwd".to_owned(), offset: 0, length: PASSWD_MAX_BYTES };
        let mut reader = match guest.read(request).await.map_err(guest_error) {
            Ok(reader) => reader,
            Err(error) if error.code == Code::FileNotFound => return Ok(Self(String::new())),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        while let Some(piece) = reader.next().await.map_err(guest_error)? {
            text.extend_from_slice(&piece);
            if text.len() as u64 > PASSWD_MAX_BYTES {
                break;
            }
        }
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The first entry of a user, by name or by number. Also `root` may have none: who asks knows what that means.
    #[must_use]
    pub fn user(&self, user: &str) -> Option<User<'_>> {
        let is_number = user.parse::<u32>().is_ok();
        let fields =
            self.0.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
                fields.first() == Some(&user) || (is_number && fields.get(2) == Some(&user))
            })?;
        Some(User { home: fields.get(5).copied().filter(|home| home.starts_with('/')) })
    }
}

/// Removes `.`, `..` and double slashes; what leads above the root stays there.
#[must_use]
pub fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The last part of a path; the path itself when there is none.
#[must_use]
pub fn name(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((_, "")) | None => path,
        Some((_, name)) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaned() {
        for (from, to) in [
            ("/", "/"),
            ("//a/./b//", "/a/b"),
            ("/a/../../b", "/b"),
            ("/home/user/", "/home/user"),
            ("/a/..", "/"),
        ] {
            assert_eq!(clean(from), to);
        }
        assert_eq!((name("/a/b"), name("/"), name("x")), ("b", "/", "x"));
    }

    #[test]
    fn users() {
        let text = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\nbad:x:1\nodd:x:2:2::home:\n";
        let passwd = Passwd::from(text.to_owned());
        let home = |user: &str| passwd.user(user).map(|found| found.home);
        assert_eq!(home("user"), Some(Some("/home/user")));
        assert_eq!(home("1000"), Some(Some("/home/user")));
        assert_eq!((home("bad"), home("odd")), (Some(None), Some(None)));
        assert_eq!(home("none"), None);
    }
}
