//! Records as the kernel's programs write them (`bpf/witness.bpf.c`), read with every length checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Nanoseconds of the boot clock.
    pub(crate) at_ns: u64,
    /// The cgroup of the sandbox.
    pub(crate) cgroup: u64,
    /// Counts the sandbox's records, those that were lost included.
    pub(crate) number: u64,
    pub(crate) process: Pid,
    /// Its pid inside.
    pub(crate) inner: u32,
    /// The user on the host.
    pub(crate) uid: u32,
    /// Name of the cgroup in which the exec began that it belongs to; empty when it belongs to none.
    pub(crate) exec: String,
    /// Number of the profile that a program runs in which begins; 0 for none.
    pub(crate) profile: u32,
    pub(crate) what: What,
}

/// A process on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pid {
    pub(crate) pid: u32,
    pub(crate) start_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Executed(Box<Executed>),
    Forked { parent: Pid },
    Exited { status: u32, cpu_ns: u64, peak_pages: u64 },
    Connect(Ends),
    Accept(Ends),
    Listen(Ends),
}

/// A program that a process began to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) parent_pid: u32,
    pub(crate) parent_start_ns: u64,
    pub(crate) file: File,
    pub(crate) path: String,
    pub(crate) cwd: String,
    pub(crate) argv: Vec<String>,
    /// Whether arguments or one of the paths were cut.
    pub(crate) cut: bool,
    /// Why the gate refuses it; `None` when it may run.
    pub(crate) refused: Option<Refused>,
}

/// Why a program may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) why: Why,
    /// It ran all the same: refusals are only told.
    pub(crate) observed: bool,
    /// The kernel could not kill it.
    pub(crate) failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It lies above the layers: written, or changed.
    Written,
    /// It lies in memory, on a volume, or elsewhere that is not the image.
    Elsewhere,
    /// It is a dynamic loader.
    Loader,
    /// No rule allows it.
    Unlisted,
    /// A rule denies it.
    Rule,
    /// It is a door to a profile that the process's own profile may not ask for.
    NotDown,
}

/// The file that it runs: the real one, below an overlay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct File {
    /// As `stat` has it.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds; zeros when the kernel does not say.
    pub(crate) changed: (i64, u32),
    pub(crate) on_overlay: bool,
    /// Written to, or made, above the layers of the overlay.
    pub(crate) upper: bool,
    pub(crate) read_only_mount: bool,
    /// It has no name any more.
    pub(crate) unlinked: bool,
    /// Which layer has it, counted from the topmost, which is 1.
    pub(crate) layer: u32,
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// As in IP.
    pub(crate) protocol: u16,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Walks through bytes; zeros where they end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap_or([0; N])
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.number())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.number())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.number())
    }

    fn text(&mut self, count: usize) -> String {
        let bytes = self.take(count);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

const HEAD_BYTES: usize = 104;
const EXEC_NAME_BYTES: usize = 48;

impl Record {
    /// `None` for what this version of the programs does not write.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEAD_BYTES {
            return None;
        }
        let mut reader = Reader(bytes);
        let (at_ns, cgroup, number, start_ns) = (reader.u64(), reader.u64(), reader.u64(), reader.u64());
        let (kind, pid, inner, uid) = (reader.u32(), reader.u32(), reader.u32(), reader.u32());
        let (_root, profile) = (reader.u32(), reader.u32());
        let exec = reader.text(EXEC_NAME_BYTES);
        let what = match kind {
            1 => What::Executed(Box::new(executed(&mut reader))),
            2 => {
                let start_ns = reader.u64();
                What::Forked { parent: Pid { pid: reader.u32(), start_ns } }
            }
            3 => {
                let (cpu_ns, peak_pages) = (reader.u64(), reader.u64());
                What::Exited { status: reader.u32(), cpu_ns, peak_pages }
            }
            4 => What::Connect(ends(&mut reader)),
            5 => What::Accept(ends(&mut reader)),
            6 => What::Listen(ends(&mut reader)),
            _ => return None,
        };
        Some(Self { at_ns, cgroup, number, process: Pid { pid, start_ns }, inner, uid, exec, profile, what })
    }
}

fn executed(reader: &mut Reader<'_>) -> Executed {
    const OVERLAY: u32 = 1;
    const UPPER: u32 = 2;
    const READ_ONLY: u32 = 4;
    const UNLINKED: u32 = 8;
    const PATH_CUT: u32 = 16;
    const CWD_CUT: u32 = 32;
    const OBSERVED: u32 = 2048;
    const NOT_KILLED: u32 = 4096;
    let parent_start_ns = reader.u64();
    let (inode, bytes, seconds, _magic) = (reader.u64(), reader.u64(), reader.u64(), reader.u64());
    let (parent_pid, argc, device, flags) = (reader.u32(), reader.u32(), reader.u32(), reader.u32());
    let (layer, nanos, args_bytes) = (reader.u32(), reader.u32(), reader.u32());
    let (path_bytes, cwd_bytes, args_len) = (reader.u16(), reader.u16(), reader.u16());
    let _padding = reader.take(6);
    let (path, cwd) = (path(reader.take(path_bytes.into())), path_dir(reader.take(cwd_bytes.into())));
    let args = reader.take(args_len.into());
    let argv: Vec<String> = args
        .strip_suffix(&[0])
        .unwrap_or(args)
        .split(|byte| *byte == 0)
        .take(argc as usize)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    let file = File {
        device: rustix::fs::makedev(device >> 20, device & 0xf_ffff),
        inode,
        bytes,
        // The topmost bit says that a process has seen this time; only the kernel needs it.
        changed: (seconds.cast_signed(), nanos & 0x7fff_ffff),
        on_overlay: flags & OVERLAY != 0,
        upper: flags & UPPER != 0,
        read_only_mount: flags & READ_ONLY != 0,
        unlinked: flags & UNLINKED != 0,
        layer,
    };
    let cut = flags & (PATH_CUT | CWD_CUT) != 0 || args_bytes > u32::from(args_len);
    let refused = why(flags).map(|why| Refused {
        why,
        observed: flags & OBSERVED != 0,
        failed: flags & NOT_KILLED != 0,
    });
    Executed { parent_pid, parent_start_ns, file, path, cwd, argv, cut, refused }
}

fn why(flags: u32) -> Option<Why> {
    let reasons = [
        (64, Why::Written),
        (128, Why::Elsewhere),
        (256, Why::Loader),
        (512, Why::Unlisted),
        (1024, Why::Rule),
        (8192, Why::NotDown),
    ];
    reasons.into_iter().find(|(flag, _)| flags & flag != 0).map(|(_, why)| why)
}

/// A path from its names, which the program wrote from the last to the first.
fn path(names: &[u8]) -> String {
    let names = names.strip_suffix(&[0]).unwrap_or(names);
    let mut path = String::new();
    for name in names.rsplit(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        path.push('/');
        path.push_str(&String::from_utf8_lossy(name));
    }
    path
}

fn path_dir(names: &[u8]) -> String {
    let path = path(names);
    if path.is_empty() { "/".to_owned() } else { path }
}

fn ends(reader: &mut Reader<'_>) -> Ends {
    const AF_INET6: u16 = 10;
    let (family, protocol, local_port, peer_port) = (reader.u16(), reader.u16(), reader.u16(), reader.u16());
    let mut address = |port| {
        let bytes: [u8; 16] = reader.number();
        let ip = if family == AF_INET6 {
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        } else {
            let [a, b, c, d, ..] = bytes;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        };
        SocketAddr::new(ip, port)
    };
    let (local, peer) = (address(local_port), address(peer_port));
    Ends { protocol, local, peer }
}
