//! Ids in the form that Runloop's users know: the engine's ids, with another prefix.

use atoll_core::id::{BuildId, ExecId, SandboxId, SnapshotId};

/// The prefixes of ids.
const DEVBOX: &str = "dbx_";
const EXECUTION: &str = "exec_";
const SNAPSHOT: &str = "snp_";
const BLUEPRINT: &str = "bpt_";

/// The engine's id that a text stands for; the text itself when it has another form, such as the engine's own.
fn read(text: &str, ours: &str, engines: &str) -> String {
    text.strip_prefix(ours).map_or_else(|| text.to_owned(), |body| format!("{engines}{body}"))
}

fn write(id: &str, ours: &str, engines: &str) -> String {
    format!("{ours}{}", id.strip_prefix(engines).unwrap_or(id))
}

/// `dbx_…` of a sandbox.
pub(crate) fn of_sandbox(id: &SandboxId) -> String {
    write(id.as_str(), DEVBOX, SandboxId::PREFIX)
}

/// The id under which the engine knows the sandbox. Never a name: a text that is no id finds no sandbox.
pub(crate) fn sandbox(text: &str) -> String {
    let id = read(text, DEVBOX, SandboxId::PREFIX);
    // A name may pass to another sandbox.
    if id.parse::<SandboxId>().is_ok() { id } else { SandboxId::from_parts(0, 0).to_string() }
}

/// `exec_…` of an exec.
pub(crate) fn of_exec(id: &ExecId) -> String {
    write(id.as_str(), EXECUTION, ExecId::PREFIX)
}

/// The id under which the engine knows the exec, if the text has the form of its id.
pub(crate) fn exec(text: &str) -> Option<ExecId> {
    read(text, EXECUTION, ExecId::PREFIX).parse().ok()
}

/// `snp_…` of a snapshot.
pub(crate) fn of_snapshot(id: &SnapshotId) -> String {
    write(id.as_str(), SNAPSHOT, SnapshotId::PREFIX)
}

/// The id under which the engine knows the snapshot, if the text has the form of its id.
pub(crate) fn snapshot(text: &str) -> Option<SnapshotId> {
    read(text, SNAPSHOT, SnapshotId::PREFIX).parse().ok()
}

/// `bpt_…` of a build.
pub(crate) fn of_build(id: &BuildId) -> String {
    write(id.as_str(), BLUEPRINT, BuildId::PREFIX)
}

/// The build that is this blueprint, if the text has the form of its id.
pub(crate) fn blueprint(text: &str) -> Option<BuildId> {
    read(text, BLUEPRINT, BuildId::PREFIX).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let (sandbox_id, exec_id) = (SandboxId::from_parts(7, 9), ExecId::from_parts(7, 9));
        let told = of_sandbox(&sandbox_id);
        assert!(told.starts_with("dbx_"));
        assert_eq!(sandbox(&told), sandbox_id.to_string());
        assert_eq!(sandbox(sandbox_id.as_str()), sandbox_id.to_string());
        assert_eq!(exec(&of_exec(&exec_id)), Some(exec_id));
    }

    #[test]
    fn names_name_nothing() {
        for text in ["web", "", "dbx_", "dbx_web", "../x"] {
            assert_eq!(sandbox(text), SandboxId::from_parts(0, 0).to_string(), "{text}");
            assert_eq!(exec(text), None);
        }
    }
}
