//! The clients' paths: relative ones begin at the directory in which commands run.

use atoll_core::{Code, Error, spec};
use atoll_dialect_kit::sandboxes;
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::Read;

use crate::who::Inside;

/// Bytes of `/etc/passwd` that are read.
const PASSWD_MAX_BYTES: u64 = 1 << 20;

/// The home of the sandbox's user.
///
/// # Errors
/// The errors of waking the sandbox and of reading.
pub(crate) async fn home(inside: &Inside) -> Result<String, Error> {
    let user = inside.engine().sandbox(inside.id())?.spec.user;
    let user = user.split(':').next().unwrap_or("root");
    let guest = sandboxes::awake(inside.engine(), inside.id()).await?;
    let text = passwd(&guest).await?;
    Ok(home_in(&text, user).unwrap_or_else(|| "/".to_owned()))
}

/// Reads the sandbox's `/etc/passwd`. The text is hostile: it is used only for paths inside the sandbox.
async fn passwd(guest: &GuestLease) -> Result<String, Error> {
    let request = Read { path: "/etc/passwd".to_owned(), offset: 0, length: PASSWD_MAX_BYTES };
    let mut reader = match guest.read(request).await.map_err(guest_error) {
        Ok(reader) => reader,
        // An image without `/etc/passwd` still has root.
        Err(error) if error.code == Code::FileNotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    while let Some(piece) = reader.next().await.map_err(guest_error)? {
        text.extend_from_slice(&piece);
        if text.len() as u64 > PASSWD_MAX_BYTES {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn home_in(passwd: &str, user: &str) -> Option<String> {
    let is = |fields: &[&str]| {
        fields.first() == Some(&user) || (user.parse::<u32>().is_ok() && fields.get(2) == Some(&user))
    };
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| is(fields));
    match entry {
        Some(fields) => Some((*fields.get(5)?).to_owned()).filter(|home| home.starts_with('/')),
        None => (user == "root" || user == "0").then(|| "/root".to_owned()),
    }
}

/// The directory in which commands run.
///
/// # Errors
/// As [`home`].
pub(crate) async fn base(inside: &Inside) -> Result<String, Error> {
    match inside.engine().sandbox(inside.id())?.spec.workdir {
        Some(dir) => Ok(dir),
        None => home(inside).await,
    }
}

/// The absolute path that the client means.
///
/// # Errors
/// [`Code::PathInvalid`], and as [`home`].
pub(crate) async fn absolute(inside: &Inside, path: &str) -> Result<String, Error> {
    let full = match path {
        "" => return Err(Error::new(Code::PathInvalid, "path: is missing")),
        path if path.starts_with('/') => path.to_owned(),
        "~" => home(inside).await?,
        path => match path.strip_prefix("~/") {
            Some(rest) => format!("{}/{rest}", home(inside).await?),
            None => format!("{}/{path}", base(inside).await?),
        },
    };
    let full = clean(&full);
    spec::path("path", &full)?;
    Ok(full)
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
        for (from, to) in [("/", "/"), ("//a/./b//", "/a/b"), ("/a/../../b", "/b"), ("/a/..", "/")] {
            assert_eq!(clean(from), to);
        }
        assert_eq!((name("/a/b"), name("/"), name("x")), ("b", "/", "x"));
    }

    #[test]
    fn homes() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\ndaytona:x:1000:1000::/home/daytona:/bin/bash\nbad:x:1\n";
        assert_eq!(home_in(passwd, "daytona").as_deref(), Some("/home/daytona"));
        assert_eq!(home_in(passwd, "1000").as_deref(), Some("/home/daytona"));
        assert_eq!(
            (home_in("", "root").as_deref(), home_in("", "0").as_deref()),
            (Some("/root"), Some("/root"))
        );
        assert_eq!((home_in(passwd, "bad"), home_in(passwd, "none")), (None, None));
    }
}
