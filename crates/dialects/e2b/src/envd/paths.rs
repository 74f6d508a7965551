//! Paths as the clients write them: absolute, below the user's home, or with a tilde.

use atoll_core::spec;
pub(crate) use atoll_dialect_kit::paths::name;
use atoll_dialect_kit::paths::{Passwd, clean};
use atoll_engine::GuestLease;

use super::auth::{Envd, unknown_user};
use crate::connect::Fault;

fn home_in<'a>(passwd: &'a Passwd, user: &str) -> Option<&'a str> {
    match passwd.user(user) {
        Some(entry) => entry.home,
        None => (user == "root").then_some("/root"),
    }
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
            let passwd = Passwd::read(guest).await.map_err(|error| Fault::of(&error))?;
            let home = home_in(&passwd, &user).ok_or_else(|| unknown_user(&user))?;
            below_home.map_or_else(|| path.to_owned(), |rest| format!("{home}/{rest}"))
        }
    };
    let absolute = clean(&absolute);
    spec::path("path", &absolute).map_err(|error| Fault::of(&error))?;
    Ok(absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let text = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\nbad:x:1\n";
        let passwd = Passwd::from(text.to_owned());
        assert_eq!(home_in(&passwd, "user"), Some("/home/user"));
        assert_eq!(home_in(&passwd, "1000"), Some("/home/user"));
        assert_eq!(home_in(&Passwd::from(String::new()), "root"), Some("/root"));
        assert_eq!((home_in(&passwd, "bad"), home_in(&passwd, "none")), (None, None));
    }
}
