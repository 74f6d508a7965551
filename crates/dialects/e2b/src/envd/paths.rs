//! Paths as the clients write them: absolute, below the user's home, or with a tilde.

use atoll_core::{Code, Error, spec};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::Read;

use super::auth::{Envd, unknown_user};
use crate::connect::Fault;

/// Bytes of `/etc/passwd` that are read.
const PASSWD_MAX_BYTES: u64 = 1 << 20;

/// Reads a user's home from the sandbox's `/etc/passwd`. The text is hostile: it is used only for paths inside the
/// sandbox.
async fn home_of(guest: &GuestLease, user: &str) -> Result<Option<String>, Error> {
    let request = Read { path: "/etc/passwd".to_owned(), offset: 0, length: PASSWD_MAX_BYTES };
    let mut text = Vec::new();
    match guest.read(request).await.map_err(guest_error) {
        Ok(mut reader) => {
            while let Some(piece) = reader.next().await.map_err(guest_error)? {
                text.extend_from_slice(&piece);
                if text.len() as u64 > PASSWD_MAX_BYTES {
                    break;
                }
            }
        }
        // An image without `/etc/passwd` still has root.
        Err(error) if error.code == Code::FileNotFound => {}
        Err(error) => return Err(error),
    }
    let text = String::from_utf8_lossy(&text);
    Ok(home_in(&text, user))
}

fn home_in(passwd: &str, user: &str) -> Option<String> {
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.first() == Some(&user) || (user.parse::<u32>().is_ok() && fields.get(2) == Some(&user))
    });
    match entry {
        Some(fields) => Some((*fields.get(5)?).to_owned()).filter(|home| home.starts_with('/')),
        None => (user == "root").then(|| "/root".to_owned()),
    }
}

/// Removes `.`, `..` and double slashes: the clients are told the path in this form.
fn clean(path: &str) -> String {
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

/// The absolute path that the client means. An unknown user is an error, also where the path does not need one.
pub(crate) async fn resolve(envd: &Envd, guest: &GuestLease, path: &str) -> Result<String, Fault> {
    let below_home = match path.strip_prefix('~') {
        Some("") => Some(""),
        Some(rest) if rest.starts_with('/') => Some(rest),
        Some(_) | None if path.starts_with('/') => None,
        Some(_) | None => Some(path),
    };
    let absolute = match (below_home, &envd.user) {
        (None, None) => path.to_owned(),
        (below_home, _) => {
            let user = envd.owner().map_err(|error| Fault::of(&error))?;
            let home = home_of(guest, &user).await.map_err(|error| Fault::of(&error))?;
            let home = home.ok_or_else(|| unknown_user(&user))?;
            below_home.map_or_else(|| path.to_owned(), |rest| format!("{home}/{rest}"))
        }
    };
    let absolute = clean(&absolute);
    spec::path("path", &absolute).map_err(|error| Fault::of(&error))?;
    Ok(absolute)
}

/// The last part of a path.
pub(crate) fn name(path: &str) -> &str {
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
    fn homes() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\nbad:x:1\n";
        assert_eq!(home_in(passwd, "user").as_deref(), Some("/home/user"));
        assert_eq!(home_in(passwd, "1000").as_deref(), Some("/home/user"));
        assert_eq!(home_in("", "root").as_deref(), Some("/root"));
        assert_eq!((home_in(passwd, "bad"), home_in(passwd, "none")), (None, None));
    }
}
