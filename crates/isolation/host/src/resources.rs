//! What carries a sandbox's id on the host, as far as every level has it: cgroups with their processes, and the
//! directories of records. A driver adds what only its level has.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use atoll_core::id::SandboxId;
use atoll_isolation::{IsolationError, Resource};

use crate::Cgroups;
use crate::step::Step;

/// The sandboxes that a directory has an entry of: named by the id, and then `ending`. Other names are passed over.
///
/// # Errors
/// When the directory cannot be read.
pub fn sandboxes_in(dir: &Path, ending: &str) -> io::Result<Vec<SandboxId>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        ids.extend(name.to_str().and_then(|name| name.strip_suffix(ending)?.parse::<SandboxId>().ok()));
    }
    Ok(ids)
}

/// The cgroups of sandboxes, and the directories of their records, which lie in `records`. Not their processes, which
/// are in cgroups that are found: see [`with_processes`].
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn parts(cgroups: &Cgroups, records: &Path) -> Result<Vec<Resource>, IsolationError> {
    let mut found = Vec::new();
    for (sandbox, name) in cgroups.scan()? {
        found.push(Resource { sandbox, kind: "cgroup", name });
    }
    for sandbox in sandboxes_in(records, "").step("list the sandboxes")? {
        let name = records.join(sandbox.as_str()).display().to_string();
        found.push(Resource { sandbox, kind: "directory", name });
    }
    Ok(found)
}

/// Adds the processes in those cgroups that were found, and sorts everything.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn with_processes(cgroups: &Cgroups, mut found: Vec<Resource>) -> Result<Vec<Resource>, IsolationError> {
    let with_cgroups = found.iter().filter(|part| part.kind == "cgroup");
    let with_cgroups: BTreeSet<_> = with_cgroups.map(|part| part.sandbox.clone()).collect();
    for sandbox in with_cgroups {
        for pid in cgroups.pids(&sandbox)? {
            found.push(Resource { sandbox: sandbox.clone(), kind: "process", name: pid.to_string() });
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_sandboxes_are_listed() {
        let dir = tempfile::Builder::new().prefix("atoll-resources-").tempdir().unwrap();
        let (one, other) = (SandboxId::from_parts(1, 2), SandboxId::from_parts(1, 3));
        for name in [one.to_string(), format!("{other}.img"), "notes".to_owned(), ".img".to_owned()] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(sandboxes_in(dir.path(), "").unwrap(), [one]);
        assert_eq!(sandboxes_in(dir.path(), ".img").unwrap(), [other]);
        assert!(sandboxes_in(&dir.path().join("absent"), "").is_err());
    }
}
