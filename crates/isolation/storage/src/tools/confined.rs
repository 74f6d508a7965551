//! Confines a program of e2fsprogs or erofs-utils: it reads what a guest or an image's author wrote, as root, and may have
//! faults.
//!
//! Three layers. None of them can be undone. A thread that does nothing but start the program puts them on itself, so
//! that this needs no code between fork and exec, and the server's other threads stay as they are:
//!
//! 1. No capability, now or later; one that reads a tree may read files whoever owns them. Being root it can still open
//!    what root owns, so
//! 2. Landlock: of all files it can read programs, libraries, what the kernel tells and its tree, and read and write the
//!    image.
//!    On a kernel without Landlock this layer is missing, which the server logs once.
//! 3. A filter of system calls: no sockets, no signals to others, no mounts, no namespaces, no kernel interface that
//!    takes programs.
//!
//! A tree is mounted where the program alone sees it, in a mount namespace of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::sync::Once;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::Tree;
use crate::mounts::attach_alone;

/// Paths that every program needs to read: itself, its libraries, its configuration, what the kernel tells of devices
/// and mounts. Paths that do not exist are passed over.
const READ: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/mke2fs.conf",
    "/etc/e2fsck.conf",
    "/etc/mtab",
    "/etc/localtime",
    "/proc",
    "/sys",
];
/// What every program may also write to.
const WRITTEN: &str = "/dev/null";
/// The newest Landlock rules that are asked for; an older kernel applies those that it has.
const RULES: ABI = ABI::V6;
/// Highest capability number to try to drop; the kernel refuses those it does not know.
const CAPABILITY_MAX: u32 = 63;

/// Calls that no program of e2fsprogs makes, and that reach beyond its files.
const REFUSED: [libc::c_long; 55] = [
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_personality,
];

/// Starts `command` with nothing of the host in its reach but `reach` and `tree`.
///
/// # Errors
/// What the kernel says. Then nothing runs.
pub(super) fn spawn(command: &mut Command, reach: &File, tree: Option<&Tree<'_>>) -> io::Result<Child> {
    let filter = filter().map_err(io::Error::other)?;
    let confined = || {
        if let Some(tree) = tree {
            attach_alone(tree.mount, tree.at)?;
        }
        drop_capabilities(tree.map_or(CapabilitySet::empty(), |_| CapabilitySet::DAC_READ_SEARCH))?;
        restrict_files(reach, tree).map_err(io::Error::other)?;
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
        command.spawn()
    };
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("atoll-tool".to_owned()).spawn_scoped(scope, confined)?;
        thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the thread that starts it panicked")))
    })
}

/// Takes all capabilities from this thread, and from what it starts, `but` these.
fn drop_capabilities(but: CapabilitySet) -> io::Result<()> {
    for number in 0..=CAPABILITY_MAX {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if but.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: but, permitted: but, inheritable: but },
    )?;
    Ok(())
}

fn restrict_files(reach: &File, tree: Option<&Tree<'_>>) -> Result<(), RulesetError> {
    static MISSING: Once = Once::new();
    let (all, read) = (AccessFs::from_all(RULES), AccessFs::from_read(RULES));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(RULES))?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules([WRITTEN], all))?
        .add_rule(PathBeneath::new(reach, all))?;
    if let Some(tree) = tree {
        rules = rules.add_rule(PathBeneath::new(tree.mount, read))?;
    }
    let status = rules.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        MISSING.call_once(|| {
            tracing::warn!(
                "this kernel has no Landlock: programs that read what sandboxes wrote can open the host's files"
            );
        });
    }
    Ok(())
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules: BTreeMap<i64, _> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::try_from(std::env::consts::ARCH)?)?
        .try_into()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::process::Command;

    use rustix::fs::CWD;
    use rustix::mount::{OpenTreeFlags, open_tree};

    use super::super::{Tree, run, run_on};

    fn nothing() -> File {
        File::open("/dev/null").unwrap()
    }

    /// The output of a shell that runs confined like such a program, with `reach`.
    fn says(line: &str, reach: &File) -> String {
        let mut command = Command::new("/bin/sh");
        run(command.args(["-c", line]), reach, "try").unwrap().said
    }

    #[test]
    fn it_gets_at_its_image_and_at_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (image, other) = (dir.path().join("image"), dir.path().join("other"));
        std::fs::write(&image, "old").unwrap();
        std::fs::write(&other, "secret").unwrap();
        let script = format!(
            "cat /proc/self/fd/0 && echo -n new > {0}; cat {1}; echo x > {1}; echo x > {2}/third; cat /etc/shadow; ls {2}; rm {1}",
            image.display(),
            other.display(),
            dir.path().display()
        );
        let said = says(&script, &File::options().read(true).write(true).open(&image).unwrap());
        assert!(said.starts_with("old"), "{said}");
        assert_eq!(said.matches("ermission denied").count(), 6, "{said}");
        assert_eq!(std::fs::read_to_string(&image).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "secret");
        assert!(!dir.path().join("third").try_exists().unwrap());
    }

    #[test]
    fn it_has_no_capability_and_gets_none() {
        let said = says("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status", &nothing());
        for line in said.lines() {
            let (name, value) = line.split_once(':').unwrap();
            let wanted = match name {
                "NoNewPrivs" => "1",
                "Seccomp" => "2",
                _ => "0000000000000000",
            };
            assert_eq!(value.trim(), wanted, "{line}");
        }
        assert_eq!(said.lines().count(), 7, "{said}");
    }

    #[test]
    fn it_reads_all_of_its_tree_which_nobody_else_sees() {
        let dir = tempfile::tempdir().unwrap();
        let (files, at) = (dir.path().join("files"), dir.path().join("at"));
        for place in [&files, &at] {
            std::fs::create_dir(place).unwrap();
        }
        let (theirs, other) = (files.join("theirs"), dir.path().join("other"));
        for (file, content) in [(&theirs, "content"), (&other, "secret")] {
            std::fs::write(file, content).unwrap();
        }
        std::os::unix::fs::chown(&theirs, Some(4242), Some(4242)).unwrap();
        std::fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, &files, flags).unwrap();
        let line = format!(
            "cat {0}/theirs; ls {0}; cat {1}; ls {2}; echo x > {0}/theirs; rm -f {0}/theirs; grep CapEff /proc/self/status",
            at.display(),
            other.display(),
            dir.path().display()
        );
        let mut command = Command::new("/bin/sh");
        let tree = Tree { mount: mount.as_fd(), at: &at };
        let said = run_on(command.args(["-c", &line]), &tree, &nothing(), "try").unwrap().said;
        assert!(said.starts_with("contenttheirs\n"), "{said}");
        assert_eq!(said.matches("ermission denied").count(), 4, "{said}");
        assert!(said.ends_with("CapEff:\t0000000000000004\n"), "{said}");
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "content");
    }

    #[test]
    fn it_signals_nobody_and_makes_no_socket() {
        let said = says(&format!("kill -0 {}; echo $?", std::process::id()), &nothing());
        assert!(said.trim_end().ends_with('1'), "{said}");
        let socket = "import socket\ntry: socket.socket()\nexcept OSError as error: print(error.errno)";
        let mut command = Command::new("/usr/bin/python3");
        let said = run(command.args(["-c", socket]), &nothing(), "try").unwrap().said;
        assert_eq!(said.trim(), libc::EPERM.to_string());
    }

    #[test]
    fn nothing_of_it_is_left_in_who_started_it() {
        says("true", &nothing());
        assert!(std::fs::read_to_string("/etc/shadow").is_ok());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(status.contains("NoNewPrivs:\t0"), "{status}");
    }
}
