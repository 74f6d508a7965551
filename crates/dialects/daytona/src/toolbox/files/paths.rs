//! The clients' paths: relative ones begin at the directory in which commands run.

use atoll_core::{Code, Error, spec};
pub(crate) use atoll_dialect_kit::paths::name;
use atoll_dialect_kit::paths::{Passwd, clean};
use atoll_dialect_kit::sandboxes;

use crate::who::Inside;

/// The home of the sandbox's user.
///
/// # Errors
/// The errors of waking the sandbox and of reading.
pub(crate) async fn home(inside: &Inside) -> Result<String, Error> {
    let user = inside.engine().sandbox(inside.id())?.spec.user;
    let user = user.split(':').next().unwrap_or("root");
    let guest = sandboxes::awake(inside.engine(), inside.id()).await?;
    let passwd = Passwd::read(&guest).await?;
    Ok(home_in(&passwd, user).unwrap_or("/").to_owned())
}

fn home_in<'a>(passwd: &'a Passwd, user: &str) -> Option<&'a str> {
    match passwd.user(user) {
        Some(entry) => entry.home,
        None => (user == "root" || user == "0").then_some("/root"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let text = "root:x:0:0:root:/root:/bin/sh\ndaytona:x:1000:1000::/home/daytona:/bin/bash\nbad:x:1\n";
        let passwd = Passwd::from(text.to_owned());
        assert_eq!(home_in(&passwd, "daytona"), Some("/home/daytona"));
        assert_eq!(home_in(&passwd, "1000"), Some("/home/daytona"));
        assert_eq!((home_in(&passwd, "bad"), home_in(&passwd, "none")), (None, None));
        let none = Passwd::from(String::new());
        assert_eq!((home_in(&none, "root"), home_in(&none, "0")), (Some("/root"), Some("/root")));
    }
}
