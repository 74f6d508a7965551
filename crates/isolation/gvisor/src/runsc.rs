//! gVisor's program `runsc`: finding it, its options, and the configuration of a sandbox.

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_guest_protocol::sentry::{SOCKETS_VARIABLE, TMP_MARK};
use atoll_isolation::{IsolationError, Plan};
use atoll_network::RESOLVER_ADDRESS;
use serde_json::{Value, json};

use crate::launch::{IDS, SHARED, volume_place};

/// Directory of the sandbox's root in which is what the level itself needs.
pub(crate) const OWN_DIRECTORY: &str = ".atoll";
/// Where the sandbox finds the agent's program and the shared directory.
const AGENT_INSIDE: &str = "/.atoll/agent";
const SHARED_INSIDE: &str = "/.atoll/host";
/// Name of the agent's program in its directory.
pub(crate) const AGENT_FILE: &str = "atoll-guest";
/// What commands may do, all within the sentry: what root of a container has, too. The agent has two more, and keeps them
/// to itself.
const CAPABILITIES: [&str; 13] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_SETFCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_AUDIT_WRITE",
];
const AGENTS_CAPABILITIES: [&str; 2] = ["CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"];
/// The options that we depend on. A program that does not know them is refused.
const NEEDED: [&str; 6] = ["network", "host-uds", "overlay2", "file-access", "ignore-cgroups", "platform"];

/// How the sentry intercepts the system calls of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// By signals of a system call filter: fast, since 2023.
    Systrap,
    /// By tracing: slow, everywhere.
    Ptrace,
}

impl Platform {
    /// In the order in which they are tried.
    pub(crate) const ALL: [Self; 2] = [Self::Systrap, Self::Ptrace];

    /// gVisor's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Systrap => "systrap",
            Self::Ptrace => "ptrace",
        }
    }
}

/// An installed `runsc`.
#[derive(Debug, Clone)]
pub struct Runsc {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// Whether programs can have set-user-id bits that work.
    pub(crate) set_user_id: bool,
    platforms: Vec<Platform>,
}

impl Runsc {
    /// Asks a program what it is. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`]: it is not there, does not start, or lacks something.
    pub fn find(path: &Path) -> Result<Self, IsolationError> {
        let said = |argument: &str| {
            let output = Command::new(path).arg(argument).env_clear().output();
            let output = output.map_err(|error| {
                IsolationError::Unavailable(format!("{} does not start: {error}", path.display()))
            })?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(text(&output.stdout) + &text(&output.stderr))
        };
        // Each takes 50 ms: both are asked at once.
        let (version, flags) = std::thread::scope(|scope| {
            let version = scope.spawn(|| said("--version"));
            let flags = said("flags");
            (version.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), flags)
        });
        let (version, flags) = (version?.lines().next().unwrap_or_default().to_owned(), flags?);
        let knows = |name: &str| {
            flags.lines().any(|line| {
                line.trim_start()
                    .strip_prefix('-')
                    .is_some_and(|line| line.split_whitespace().next() == Some(name))
            })
        };
        let missing: Vec<_> = NEEDED.into_iter().filter(|name| !knows(name)).collect();
        if !missing.is_empty() {
            return Err(IsolationError::Unavailable(format!(
                "{} ({version}) is too old: it does not know --{}",
                path.display(),
                missing.join(" and --")
            )));
        }
        let platforms =
            Platform::ALL.into_iter().filter(|platform| flags.contains(platform.as_str())).collect();
        Ok(Self { path: path.to_owned(), version, set_user_id: knows("allow-suid"), platforms })
    }

    /// The platforms that it knows.
    pub(crate) fn platforms(&self) -> &[Platform] {
        &self.platforms
    }
}

/// Options before the command.
///
/// - `--network=host`: sockets inside are sockets of the host's kernel, in the sandbox's network slot, where the gateway's
///   steering meets them. That slot has no interface but loopback, so this opens no way; it lets programs reach the host's
///   TCP and UDP through the sentry's checks of every call.
/// - `--host-uds=create`: sockets with a name in the file system can be met from outside; that is how the server
///   reaches the agent. Programs inside can reach none of the host's sockets.
/// - `--overlay2=none`: what is written goes to the sandbox's disk, which has a limit and can be snapshotted, and nowhere else.
/// - `--file-access=exclusive`: no other process writes to the disk. Volumes are mounts and may be shared, so the
///   sentry asks the host each time.
/// - `--ignore-cgroups`: the jail is in its cgroups already.
pub(crate) fn options(platform: Platform) -> Vec<String> {
    let options = [
        "--network=host",
        "--host-uds=create",
        "--overlay2=none",
        "--file-access=exclusive",
        "--ignore-cgroups",
    ];
    let platform = format!("--platform={}", platform.as_str());
    options.into_iter().map(str::to_owned).chain([platform]).collect()
}

/// What a sandbox has beside its disk.
pub(crate) struct Shared {
    /// Where.
    pub(crate) path: String,
    pub(crate) read_only: bool,
    /// The directory of a volume that it has.
    pub(crate) subpath: Option<String>,
}

/// A sandbox's volumes and then its agent layers.
pub(crate) fn shared(plan: &Plan) -> Vec<Shared> {
    let volumes = plan.volumes.iter().map(|volume| Shared {
        path: volume.path.clone(),
        read_only: volume.read_only,
        subpath: volume.subpath.clone(),
    });
    let layers =
        plan.layers.iter().map(|layer| Shared { path: layer.path(), read_only: true, subpath: None });
    volumes.chain(layers).collect()
}

/// The sandbox as `runsc` wants it described. Paths of mounts are those of the jail.
pub(crate) fn config(plan: &Plan, first_id: u32) -> String {
    let agent: Vec<_> = CAPABILITIES.into_iter().chain(AGENTS_CAPABILITIES).collect();
    let ids = json!([{ "containerID": 0, "hostID": first_id, "size": IDS }]);
    let namespaces: Vec<Value> =
        ["pid", "ipc", "uts", "mount", "user"].into_iter().map(|kind| json!({ "type": kind })).collect();
    let shm = format!("size={}", plan.resources.memory_bytes / 2);
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }),
        json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"] }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["mode=1777", shm] }),
        json!({ "destination": AGENT_INSIDE, "type": "bind", "source": "/agent", "options": ["ro", "nosuid", "nodev"] }),
        json!({ "destination": SHARED_INSIDE, "type": "bind", "source": SHARED, "options": ["nosuid", "nodev"] }),
    ];
    mounts.extend(shared(plan).into_iter().enumerate().map(|(number, Shared { path, read_only, .. })| {
        let source = format!("/{}", volume_place(number));
        let access = if read_only { "ro" } else { "rw" };
        json!({ "destination": path, "type": "bind", "source": source, "options": [access, "nosuid", "nodev"] })
    }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": [format!("{AGENT_INSIDE}/{AGENT_FILE}")],
            "env": [
                format!("ATOLL_SANDBOX_ID={}", plan.id),
                format!("{SOCKETS_VARIABLE}={SHARED_INSIDE}"),
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            ],
            "cwd": "/",
            "capabilities": { "bounding": agent, "effective": agent, "permitted": agent },
            "noNewPrivileges": false,
        },
        "root": { "path": "/root", "readonly": false },
        "hostname": plan.hostname,
        "mounts": mounts,
        "linux": { "namespaces": namespaces, "uidMappings": ids, "gidMappings": ids },
    })
    .to_string()
}

/// Files below the root that depend on the sandbox, and those that only take another's place.
pub(crate) fn files(plan: &Plan) -> [Vec<(PathBuf, String)>; 2] {
    let hostname = &plan.hostname;
    let hosts =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{hostname}\n");
    // Thirty-two hexadecimal digits that are this sandbox's own, even when it shares its image or snapshot with others.
    let machine = format!("{}\n", &blake3::hash(plan.id.as_str().as_bytes()).to_hex()[..32]);
    let put = vec![
        ("etc/hostname".into(), format!("{hostname}\n")),
        ("etc/hosts".into(), hosts),
        ("etc/resolv.conf".into(), format!("nameserver {RESOLVER_ADDRESS}\n")),
        (TMP_MARK.into(), String::new()),
    ];
    [put, vec![("etc/machine-id".into(), machine)]]
}
