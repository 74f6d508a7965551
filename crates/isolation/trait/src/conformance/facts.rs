//! What it looks like from inside.

use atoll_core::spec::{IsolationLevel, Resources};

use super::{Harness, Sandbox};
use crate::RootFs;

/// Its own name, process 1, devices, terminals, shared memory, writable places.
pub async fn it_is_a_computer_of_its_own(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    assert_eq!(sandbox.see("hostname").await, "conformance");
    assert_eq!(sandbox.see("cat /etc/hostname").await, "conformance");
    assert!(sandbox.see("cat /etc/hosts").await.contains("conformance"));
    // A kernel's own threads have no memory.
    let pids = sandbox.see("cd /proc; grep -l VmSize [0-9]*/status | cut -d / -f 1 | xargs").await;
    assert!(pids.starts_with("1 ") && pids.split(' ').count() <= 6, "processes: {pids}");
    sandbox.see("echo x > /dev/null && head -c 4 /dev/urandom > /dev/shm/x && test -s /dev/shm/x").await;
    sandbox.see("test -c /dev/tty && test -e /dev/ptmx && test -e /dev/fd/0 && test -d /dev/pts").await;
    sandbox.see("for d in /tmp /var/tmp /root /etc /run; do touch $d/probe || exit 1; done").await;
    assert_eq!(sandbox.see("stat -c %a /tmp").await, "1777");
    assert_eq!(sandbox.see("script -qec 'tty' /dev/null").await, "/dev/pts/0");
    sandbox.destroy().await;
}

/// No file, process or mount of the host's.
pub async fn nothing_of_the_host_is_visible(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let marker = std::env::temp_dir().join(format!("atoll-marker-{}", sandbox.id));
    std::fs::write(&marker, "host").unwrap();
    let output = sandbox.run(&format!("cat {}", marker.display())).await;
    std::fs::remove_file(&marker).unwrap();
    assert_ne!(output.code, 0, "the host's file is visible: {output:?}");
    if sandbox.driver.level() == IsolationLevel::Microvm {
        // All that its root can lead to is the machine.
        return sandbox.destroy().await;
    }
    // Neither through the root or the descriptors of the agent.
    let own_program = std::env::current_exe().unwrap();
    for way in ["/proc/1/root", "/proc/1/cwd", "/proc/1/fd/3/..", "/proc/1/fd/4/../../..", "/proc/1/fd/4/.."]
    {
        // Files that the host has and the sandbox has not. With an OCI image the test looks for its own program, which
        // no image has.
        let output = match harness.root() {
            RootFs::Host => sandbox.run(&format!("ls -d {way}/etc/shadow- {way}/boot {way}/home/*")).await,
            RootFs::Layers(_) => sandbox.run(&format!("ls -d {way}{}", own_program.display())).await,
        };
        let outside = output.stdout.lines().filter(|line| !line.ends_with("/home/user")).count();
        assert_eq!(outside, 0, "{way} leads out: {output:?}");
    }
    let names = sandbox.see("cat /proc/[0-9]*/comm | sort -u | tr '\\n' ' '").await;
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert!(!names.contains(own.trim()), "the host's processes are visible: {names}");
    sandbox.destroy().await;
}

/// Mounting, namespaces, kernel settings, modules, keys, tracing the kernel: refused to root.
pub async fn root_has_no_power_over_the_kernel(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    if sandbox.driver.level() == IsolationLevel::Microvm {
        return has_a_kernel_of_its_own(sandbox).await;
    }
    let refused = [
        "mount -t tmpfs none /mnt",
        "mount --bind /tmp /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount /dev",
        "unshare --user true",
        "unshare --mount true",
        "unshare --net true",
        "unshare --pid --fork true",
        "nsenter --target 1 --mount true",
        "chroot /proc/1/root unshare --user true",
        "echo x > /proc/sys/kernel/hostname",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 5 > /proc/sys/user/max_user_namespaces",
        "echo b > /proc/sysrq-trigger",
        "head -c 1 /proc/kcore | grep -q .",
        "hostname other",
        "mknod /tmp/disk b 254 0",
        "dmesg",
        "renice -n -5 1",
        "ls /sys/firmware | grep -q .",
        "touch /sys/kernel/x",
    ];
    // A kernel in user space has its own log, priorities and user namespaces.
    let own = sandbox.driver.level() == IsolationLevel::Gvisor;
    let harmless =
        ["unshare --user true", "chroot /proc/1/root unshare --user true", "renice -n -5 1", "dmesg"];
    for script in refused.into_iter().filter(|script| !own || !harmless.contains(script)) {
        let output = sandbox.run(script).await;
        assert_ne!(output.code, 0, "allowed: {script}: {output:?}");
    }
    // Namespaces by a call whose flags a filter cannot see: clone3 with a user namespace.
    let clone3 = "perl -e '$a = pack(\"Q11\", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0); \
                  $r = syscall(435, $a, 88); exit 0 if $r == 0; exit($r > 0 ? 0 : 1)'";
    if own {
        assert!(sandbox.see("dmesg").await.contains("gVisor"));
    } else {
        assert_ne!(sandbox.run(clone3).await.code, 0, "clone3 made a user namespace");
    }
    let caps = sandbox.see("sed -n 's/^CapBnd:\\t//p' /proc/self/status").await;
    let caps = u64::from_str_radix(&caps, 16).unwrap();
    for (name, bit) in
        [("NET_ADMIN", 12), ("NET_RAW", 13), ("SYS_MODULE", 16), ("SYS_ADMIN", 21), ("SYS_RESOURCE", 24)]
    {
        assert_eq!(caps >> bit & 1, 0, "root may have CAP_{name}");
    }
    sandbox.destroy().await;
}

/// What root does to its own kernel does not show on the host.
async fn has_a_kernel_of_its_own(sandbox: Sandbox) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_ne!(sandbox.see("cat /proc/sys/kernel/random/boot_id").await, boot.trim());
    sandbox.see("mount -t tmpfs none /mnt && echo x > /mnt/x && umount /mnt && unshare --mount true").await;
    let settings = "/proc/sys/kernel/pid_max";
    let before = std::fs::read_to_string(settings).unwrap();
    sandbox.see(&format!("echo 12345 > {settings} && grep -q 12345 {settings}")).await;
    assert_eq!(std::fs::read_to_string(settings).unwrap(), before, "the host's kernel was changed");
    sandbox.destroy().await;
}

/// Loopback works, low ports need no privilege, and there is no way out.
pub async fn there_is_only_loopback_and_the_gate(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let interfaces = sandbox.see("sed -n 's/^ *\\([^:]*\\):.*/\\1/p' /proc/net/dev").await;
    let own = if sandbox.driver.level() == IsolationLevel::Microvm { "lo\neth0" } else { "lo" };
    assert_eq!(interfaces, own);
    let listen_and_connect = "perl -MIO::Socket::INET -e '\
        $s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1:80\") or die \"listen: $@\"; \
        $c = IO::Socket::INET->new(PeerAddr => \"127.0.0.1:80\") or die \"connect: $@\"; print \"ok\"'";
    let output = sandbox.run_as("user", listen_and_connect).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "ok"), "{output:?}");
    let outside = ["192.0.2.1:80", "169.254.169.254:80"];
    let connect = |address: &str| {
        format!(
            "perl -MIO::Socket::INET -e 'exit(IO::Socket::INET->new(PeerAddr => \"{address}\", Timeout => 5) ? 0 : 1)'"
        )
    };
    // With the gate it was made with, and with one that was opened later.
    for _ in 0..2 {
        let gate = sandbox.driver.gate(&sandbox.id).await.unwrap();
        for address in outside {
            assert_eq!(sandbox.run(&connect(address)).await.code, 0, "{address} does not arrive at the gate");
            let (_stream, _from) = gate.tcp.accept().unwrap();
        }
        drop(gate);
        for address in outside {
            assert_eq!(sandbox.run(&connect(address)).await.code, 1, "{address} answers without a gate");
        }
    }
    sandbox.destroy().await;
}

/// Root is root inside, the user is not; ids and owners are those of the image.
pub async fn root_and_user_are_what_they_seem(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    assert_eq!(sandbox.see("id -u; id -g").await, "0\n0");
    assert_eq!(sandbox.see("stat -c %u:%g / /etc /usr /etc/passwd | sort -u").await, "0:0");
    assert_eq!(sandbox.see("touch /tmp/f && chown 33:44 /tmp/f && stat -c %u:%g /tmp/f").await, "33:44");
    assert_eq!(
        sandbox.see("cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && stat -c %a /tmp/id").await,
        "4755"
    );
    let user = sandbox.run_as("user", "id -u; echo ~; touch ~/mine && stat -c %u ~/mine; /tmp/id -u").await;
    let elevated = if harness.set_user_id().await { "0" } else { "1000" };
    assert_eq!(user.stdout, format!("1000\n/home/user\n1000\n{elevated}\n"), "set-user-id works: {user:?}");
    for script in ["echo x >> /etc/passwd", "ls /root", "kill -9 1"] {
        let output = sandbox.run_as("user", script).await;
        assert_ne!(output.code, 0, "allowed to the user: {script}: {output:?}");
    }
    sandbox.destroy().await;
}
