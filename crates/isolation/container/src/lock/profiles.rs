//! Turns profiles into the form in which the kernel gets them.

use std::collections::HashMap;

use atoll_core::id::SandboxId;
use atoll_core::profile::{EVERY_PROGRAM, Profiles};
use atoll_isolation::IsolationError;
use atoll_witness::Profile;

use super::rules::{FILES_MAX_COUNT, Lookup};
use super::{cannot, cannot_because};
use crate::Inner;

/// The agent names an exec's cgroup with this and the exec's id.
const CGROUP_PREFIX: &str = "exec-";

/// A file, by device and inode.
type File = (u64, u64);

/// Finds the programs that profiles name. The numbers of profiles follow from their names, so that they stay.
///
/// # Errors
/// Names the program that is not there, or is named twice.
pub(super) fn resolve(
    profiles: &Profiles,
    mut lookup: Option<&mut Lookup<'_>>,
) -> Result<Vec<Profile>, String> {
    let place = |wanted: &str| profiles.named.keys().position(|name| name == wanted);
    let mut found = Vec::new();
    let (mut read_bytes, mut count) = (0, 0);
    for (name, profile) in &profiles.named {
        let mut steps: Vec<(Vec<File>, usize)> = Vec::new();
        let mut named: HashMap<File, (&str, usize)> = HashMap::new();
        let mut programs: Vec<_> =
            profile.on_exec.iter().filter(|(path, _)| *path != EVERY_PROGRAM).collect();
        // A program that is named itself comes before its directory.
        programs.sort_by_key(|(path, _)| breadth(path));
        for (path, next) in programs {
            let field = format!("profiles.named.{name}.on_exec");
            let Some(next) = place(next) else { continue };
            let Some(lookup) = lookup.as_deref_mut() else { continue };
            let files =
                lookup.files(Some(path), None, &mut read_bytes).map_err(|why| format!("{field}: {why}"))?;
            // All sandboxes share the kernel's table.
            count += files.len();
            if count > FILES_MAX_COUNT {
                return Err(format!("{field}: profiles name more than {FILES_MAX_COUNT} programs"));
            }
            for file in &files {
                let (other, goes) = *named.entry(*file).or_insert((path, next));
                if goes != next && breadth(other) == breadth(path) {
                    let why = format!(
                        "'{other}' and '{path}' are the same program, and lead to different profiles"
                    );
                    return Err(format!("{field}: {why}"));
                }
            }
            steps.push((files, next));
        }
        let others = profile.on_exec.get(EVERY_PROGRAM).and_then(|next| place(next));
        let asks = profile.asks().into_iter().filter_map(&place).collect();
        found.push(Profile { name: name.clone(), steps, others, asks });
    }
    Ok(found)
}

/// How much a path names: one program, those of a directory, all below it.
fn breadth(path: &str) -> u8 {
    match path {
        _ if path.ends_with("/**") => 2,
        _ if path.ends_with("/*") => 1,
        _ => 0,
    }
}

impl Inner {
    /// Tells the kernel in which profile an exec begins.
    pub(crate) fn exec_starts(
        &self,
        id: &SandboxId,
        exec: &str,
        profile: &str,
    ) -> Result<(), IsolationError> {
        let witness = self.witness.as_ref().map_err(|why| cannot(why))?;
        let told = witness.exec_starts(id, &format!("{CGROUP_PREFIX}{exec}"), profile);
        if told.map_err(|error| cannot_because(&error))? {
            return Ok(());
        }
        Err(cannot(&format!("the kernel knows no profile '{profile}' of this sandbox")))
    }

    /// Takes that back.
    pub(crate) fn exec_started(&self, id: &SandboxId, exec: &str) {
        let Ok(witness) = &self.witness else { return };
        if let Err(error) = witness.exec_started(id, &format!("{CGROUP_PREFIX}{exec}")) {
            tracing::warn!(%id, exec, %error, "the kernel still waits for an exec");
        }
    }
}
