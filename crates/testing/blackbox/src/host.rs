//! Finds what an installation has on the host, without the program's help.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

/// Everything on the host that belongs to an installation: text for people, empty is good.
#[must_use]
pub fn remains(installation: &str, data_dir: &Path) -> Vec<String> {
    let cgroup = format!("atoll-{installation}");
    let data = data_dir.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for pid in pids() {
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let cgroups = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if is_dead_orphan(&String::from_utf8_lossy(&read("status"))) {
            continue;
        }
        if cgroups.contains(&cgroup) || command.contains(&data) {
            found.push(format!("process {pid}: {command}"));
        }
        if read("mountinfo").windows(data.len()).any(|window| window == data.as_bytes()) {
            found.push(format!("mount seen by {pid}: {command}"));
        }
    }
    for tree in cgroup_roots() {
        for parent in [cgroup.clone(), format!("{cgroup}-vm"), format!("{cgroup}-gv")] {
            let dir = Path::new(&tree).join(parent);
            found.extend(
                names(&dir)
                    .into_iter()
                    .filter(|name| dir.join(name).is_dir())
                    .map(|name| format!("cgroup {}", dir.join(name).display())),
            );
        }
    }
    for device in names(Path::new("/sys/block")) {
        let image = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).unwrap_or_default();
        // Disks may lie in a pool, where the data directory is not part of their paths.
        if image.contains(&data) || image.contains(&cgroup) {
            found.push(format!("loop device {device}: {image}"));
        }
    }
    for dir in ["containers/sandboxes", "machines/sandboxes", "gvisor/sandboxes", "logs"] {
        found.extend(names(&data_dir.join(dir)).into_iter().map(|name| format!("directory {dir}/{name}")));
    }
    found
}

/// Everything that is kept below `/run/atoll` for an installation whose server has stopped and that has no sandboxes:
/// programs and rings that a next server would take up, and the files about sandboxes beside them.
#[must_use]
pub fn left_in_kernel(installation: &str) -> Vec<String> {
    let mut kept = names(Path::new("/run/atoll"));
    kept.retain(|name| name.starts_with(&format!("witness-{installation}")));
    kept
}

/// A process that has ended, and whose parent has ended too: only the host's init has still to reap it,
/// and in some containers init never does.
fn is_dead_orphan(status: &str) -> bool {
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    field("State:").starts_with('Z') && field("PPid:") == "1"
}

/// The processes of one sandbox, by pid on the host; the agent, which came first, is the first.
#[must_use]
pub fn processes(sandbox: &str) -> Vec<i32> {
    let mut found: Vec<i32> = pids()
        .into_iter()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(sandbox))
        })
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty()))
        .collect();
    found.sort_unstable();
    // Pids may wrap around: the agent is the one that is number 1 inside.
    found.sort_by_key(|pid| inner_pid(*pid) != Some(1));
    found
}

/// The pid that a process has in the innermost namespace.
#[must_use]
pub fn inner_pid(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Kills one process by its pid.
pub fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

/// Stops one process by its pid: it stands still.
pub fn stop(pid: i32) {
    signal(pid, Signal::STOP);
}

fn signal(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("send a signal");
}

fn pids() -> Vec<i32> {
    names(Path::new("/proc")).iter().filter_map(|name| name.parse().ok()).collect()
}

fn cgroup_roots() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let of_cgroup = |line: &&str| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("cgroup"));
    table.lines().filter(of_cgroup).filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
