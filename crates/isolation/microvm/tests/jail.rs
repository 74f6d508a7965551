//! What a program can do that stands in the place of the VMM, in the jail that the launcher builds.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_isolation_host::filter::instruction::{RETURN, step};
use atoll_isolation_host::filter::{Fate, UNKNOWN_FROM, decide, install};
use atoll_isolation_microvm::launch::{Jail, Shown};
use atoll_network::SlotPool;
use atoll_testing::calls::DANGEROUS;
use rustix::process::{Pid, WaitOptions, waitpid};

/// A user that no machine of an installation has.
const USER: u32 = 0x6ffe_0000;
/// The descriptor of the network card.
const TAP: i32 = 15;

/// Runs a program of Python's in a jail; gives its words.
fn says(program: &str) -> String {
    let dir = tempfile::Builder::new().prefix("atoll-jail-").tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    fs::create_dir(place("scratch")).unwrap();
    let slot = SlotPool::start(0).unwrap().claim().unwrap();
    let shown = |path: &str, writable| Shown { from: path.into(), to: path.into(), writable };
    let jail = Jail {
        argv: ["/usr/bin/python3", "-c", program].map(str::to_owned).into(),
        uid: USER,
        scratch: place("scratch"),
        show: vec![shown("/usr", false), shown("/dev/null", true), shown("/dev/urandom", false)],
        files: Vec::new(),
        sockets_dir: dir.path().to_owned(),
        sockets: Vec::new(),
        tap: TAP,
        cgroups: Vec::new(),
        netns: PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), slot.netns.as_raw_fd())),
        own_files: None,
        pid_file: place("pid"),
        log: place("log"),
    };
    let launcher = Path::new(env!("CARGO_BIN_EXE_atoll-vmm-launcher"));
    let jail = serde_json::to_string(&jail).unwrap();
    let launched = Command::new(launcher).arg(jail).output().unwrap();
    assert!(launched.status.success(), "{}", String::from_utf8_lossy(&launched.stderr));
    let pid: i32 = fs::read_to_string(place("pid")).unwrap().parse().unwrap();
    // The launcher made it this process's child.
    waitpid(Some(Pid::from_raw(pid).unwrap()), WaitOptions::empty()).unwrap();
    fs::read_to_string(place("log")).unwrap()
}

/// Python that makes calls and prints a line for each: the name, and the error's number or 0.
fn calls(of: &[(&str, i64, &str)]) -> String {
    let mut program = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n".to_owned();
    for (name, number, arguments) in of {
        writeln!(program, "done = libc.syscall({number}, {arguments})").unwrap();
        writeln!(program, "print('{name}', ctypes.get_errno() if done < 0 else 0)").unwrap();
    }
    program
}

#[test]
fn calls_that_no_vmm_makes_are_refused() {
    let mut tried: Vec<_> = DANGEROUS.map(|(name, number)| (name, number, "0, 0, 0, 0, 0, 0")).into();
    tried.extend([
        ("mount", 165, "0, 0, 0, 0, 0"),
        ("umount2", 166, "0, 0"),
        ("pivot_root", 155, "0, 0"),
        ("chroot", 161, "0"),
        ("ptrace", 101, "0, 0, 0, 0"),
        ("capset", 126, "0, 0"),
        ("setuid", 105, "0"),
        ("fork", 57, "0"),
        ("vfork", 58, "0"),
        ("clone, a process", 56, "17, 0, 0, 0, 0"),
        ("clone, a user namespace", 56, "0x10000011, 0, 0, 0, 0"),
        ("execveat", 322, "-1, 0, 0, 0, 0"),
        ("connect", 42, "0, 0, 0"),
        ("bind", 49, "0, 0, 0"),
        ("unlink", 87, "0"),
        ("mkdir", 83, "0, 0"),
        ("mknod", 133, "0, 0, 0"),
        ("chmod", 90, "0, 0"),
    ]);
    let families: Vec<_> =
        (0..48).map(|family| (format!("socket {family}"), format!("{family}, 1, 0"))).collect();
    tried.extend(families.iter().map(|(name, arguments)| (name.as_str(), 41, arguments.as_str())));
    let said = says(&calls(&tried));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), tried.len(), "{said}");
    for (line, (name, number, _)) in lines.into_iter().zip(tried) {
        let answers = [(libc::EPERM, true), (libc::ENOSYS, number >= 424)];
        let right = answers.iter().any(|(error, fits)| *fits && line == format!("{name} {error}"));
        assert!(right, "{line}");
    }
}

#[test]
fn calls_that_a_vmm_needs_are_there() {
    let program = "
import ctypes, mmap, os, resource, select, signal, threading
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
thread = threading.Thread(target=lambda: print('thread', flush=True)); thread.start(); thread.join()
events = [os.eventfd(0), os.memfd_create('memory'), select.epoll().fileno(), *os.pipe()]
os.posix_fallocate(events[1], 0, 8192); os.ftruncate(events[1], 4096); os.fdatasync(events[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigtimedwait([signal.SIGUSR1], 0).si_signo == signal.SIGUSR1)
print(sorted(name for name in os.listdir('/') if name not in ('bin', 'lib', 'lib64', 'sbin')))
print(len(os.getrandom(8)), len(open('/dev/urandom', 'rb').read(8)))
";
    assert_eq!(says(program), "thread\nTrue\n['dev', 'usr']\n8 8\n");
}

/// The filter is on before the program starts, and nothing that it does takes it off.
#[test]
fn the_filter_is_there_from_the_first_instruction() {
    let said = says(
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
# PR_GET_SECCOMP: 2 is a filter. PR_GET_NO_NEW_PRIVS.
print(libc.prctl(21, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))
",
    );
    assert_eq!(said, "2 1\n");
}

/// QEMU would take 2 MiB for every page of translated code that it begins.
#[test]
fn it_gets_no_huge_pages() {
    let said = says(
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
# PR_GET_THP_DISABLE
print(libc.prctl(42, 0, 0, 0, 0))
",
    );
    assert_eq!(said, "1\n");
}

#[test]
fn nothing_is_open_but_what_is_handed_over() {
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    let said = says(
        "
import os
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print([fd for fd in range(0, 1024) if is_open(fd)])
",
    );
    assert_eq!(said, format!("[0, 1, 2, {TAP}]\n"));
}

#[test]
fn where_it_cannot_be_installed_nothing_starts() {
    // On a thread on which the kernel takes no further filter, nor from what it starts.
    let fate =
        |call| if libc::c_long::from(call) == libc::SYS_seccomp { Fate::Refused } else { Fate::Allowed };
    let fates: Vec<_> = (0..UNKNOWN_FROM).map(fate).collect();
    let mut refuses = decide(&fates);
    refuses.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    let without = std::thread::spawn(move || {
        install(&refuses).unwrap();
        says("print('it runs')")
    });
    let said = without.join().unwrap();
    assert_eq!(said, "failed to install the filter of system calls: Operation not permitted (os error 1)");
}
