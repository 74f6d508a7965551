//! Users and groups, read from `/etc/passwd` and `/etc/group` anew each time.
//!
//! A static program cannot load name service modules, and the files belong to the sandbox: they are
//! hostile, may change at any moment, and are read up to a limit.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use atoll_guest_protocol::messages::{Failure, Reason};
use atoll_guest_protocol::server::failure;

/// Bytes of a user database that are read.
const DATABASE_MAX_BYTES: u64 = 1 << 20;
/// Supplementary groups of one user that are used (the kernel's own limit is 65,536).
const GROUPS_MAX: usize = 1024;

/// The user and groups that a command runs as or a file belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups, with `gid`.
    pub(crate) groups: Vec<u32>,
    /// Empty when the id has no entry.
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
}

/// The two files.
#[derive(Debug, Default)]
pub(crate) struct Database {
    passwd: String,
    group: String,
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl Database {
    /// Reads both files; one that cannot be read is empty.
    pub(crate) fn read() -> Self {
        Self { passwd: read_file("/etc/passwd"), group: read_file("/etc/group") }
    }

    fn users(&self) -> impl Iterator<Item = User<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(User { name, uid, gid, home: fields.nth(1)?, shell: fields.next().unwrap_or_default() })
        })
    }

    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some(Group { name, gid, members: fields.next().unwrap_or_default() })
        })
    }

    /// Finds `user`, `uid`, `user:group` or any mix of names and numbers. Empty is root. A number
    /// needs no entry.
    pub(crate) fn identity(&self, spec: &str) -> Result<Identity, Failure> {
        let (user_part, group_part) = match spec.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (spec, None),
        };
        let unknown = |what: &str, name: &str| {
            failure(
                Reason::UserNotFound,
                format!("no {what} '{}'", name.chars().take(64).collect::<String>()),
            )
        };
        let user_part = if user_part.is_empty() { "0" } else { user_part };
        let entry = self
            .users()
            .find(|user| user.name == user_part)
            .or_else(|| id(user_part).and_then(|uid| self.users().find(|user| user.uid == uid)));
        // Root is root also in an image without a user database.
        let number = id(user_part).or_else(|| (user_part == "root").then_some(0));
        let mut identity = match (entry, number) {
            (Some(user), _) => Identity {
                uid: user.uid,
                gid: user.gid,
                groups: Vec::new(),
                name: user.name.to_owned(),
                home: user.home.to_owned(),
                shell: user.shell.to_owned(),
            },
            (None, Some(uid)) => Identity {
                uid,
                gid: 0,
                groups: Vec::new(),
                name: String::new(),
                home: String::new(),
                shell: String::new(),
            },
            (None, None) => return Err(unknown("user", user_part)),
        };
        if let Some(wanted) = group_part.filter(|group| !group.is_empty()) {
            let named = self.groups().find(|group| group.name == wanted).map(|group| group.gid);
            identity.gid = named.or_else(|| id(wanted)).ok_or_else(|| unknown("group", wanted))?;
        }
        identity.groups = self.memberships(&identity);
        Ok(identity)
    }

    fn memberships(&self, identity: &Identity) -> Vec<u32> {
        let mut groups = vec![identity.gid];
        if !identity.name.is_empty() {
            let member = |group: &Group<'_>| group.members.split(',').any(|member| member == identity.name);
            groups.extend(self.groups().filter(member).map(|group| group.gid).take(GROUPS_MAX));
        }
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Names by user id and by group id, for listings. The first entry of an id counts.
    pub(crate) fn names(&self) -> (HashMap<u32, String>, HashMap<u32, String>) {
        let mut users = HashMap::new();
        for user in self.users() {
            users.entry(user.uid).or_insert_with(|| bounded(user.name));
        }
        let mut groups = HashMap::new();
        for group in self.groups() {
            groups.entry(group.gid).or_insert_with(|| bounded(group.name));
        }
        (users, groups)
    }
}

/// Names that the protocol carries are short.
fn bounded(name: &str) -> String {
    name.chars().take(64).collect()
}

/// A numeric id; the highest number means "unchanged" to the kernel and is none.
fn id(text: &str) -> Option<u32> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())??;
    (number != u32::MAX).then_some(number)
}

fn read_file(path: &str) -> String {
    let mut bytes = Vec::new();
    // A database that cannot be read is empty, as the C library has it.
    if let Ok(file) = crate::files::open_regular(path.as_ref()) {
        drop(File::take(file, DATABASE_MAX_BYTES).read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Database {
        Database {
            passwd: "root:x:0:0:root:/root:/bin/bash\nbroken\n:x:5:5::/:\nann:x:1000:1001:Ann,,,:/home/ann:/bin/sh\n7:x:70:70::/seven:\n"
                .into(),
            group: "root:x:0:\nann:x:1001:\nwheel:x:10:bob,ann\naudio:x:29:ann\nvideo:x:44:annabel\nbad:x:zz:ann\n".into(),
        }
    }

    #[test]
    fn finds_names_numbers_and_groups() {
        let found = |spec: &str| {
            database().identity(spec).map(|found| (found.uid, found.gid, found.groups, found.home))
        };
        assert_eq!(found("ann"), Ok((1000, 1001, vec![10, 29, 1001], "/home/ann".into())));
        assert_eq!(found("1000"), found("ann"));
        assert_eq!(found("ann:audio"), Ok((1000, 29, vec![10, 29], "/home/ann".into())));
        assert_eq!(found("ann:777"), Ok((1000, 777, vec![10, 29, 777], "/home/ann".into())));
        assert_eq!(found(""), Ok((0, 0, vec![0], "/root".into())));
        assert_eq!(found("4242"), Ok((4242, 0, vec![0], String::new())));
        assert_eq!(found("4242:12"), Ok((4242, 12, vec![12], String::new())));
        assert_eq!(found("7"), Ok((70, 70, vec![70], "/seven".into())), "a name goes before a number");
    }

    #[test]
    fn root_needs_no_database() {
        let empty = Database { passwd: String::new(), group: String::new() };
        assert_eq!(empty.identity("root").unwrap().uid, 0);
        assert_eq!(empty.identity("").unwrap().uid, 0);
        assert!(empty.identity("somebody").is_err());
    }

    #[test]
    fn says_what_is_unknown() {
        for (spec, message) in [
            ("nobody-here", "no user 'nobody-here'"),
            ("ann:nogroup-here", "no group 'nogroup-here'"),
            ("-1", "no user '-1'"),
            ("4294967295", "no user '4294967295'"),
            ("4294967296", "no user '4294967296'"),
            ("broken", "no user 'broken'"),
        ] {
            let refused = database().identity(spec).unwrap_err();
            assert_eq!((refused.reason(), refused.message.as_str()), (Reason::UserNotFound, message));
        }
    }
}
