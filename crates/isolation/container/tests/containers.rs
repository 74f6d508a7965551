//! What is particular to containers: ids, images, death, leaks.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{
    DEADLINE, Sandbox, assert_clean, assert_gone, chain, eventually, fresh_id, plan,
};
use atoll_isolation::{
    Death, DiskSource, Gates as _, Isolation, IsolationError, Lifecycle as _, Plan, RootFs, Status,
};
use atoll_isolation_storage::loops_in_use;
use common::{Containers, containers};

/// The processes of a sandbox, on the host.
async fn pids(driver: &dyn Isolation, id: &SandboxId) -> Vec<i32> {
    let found = driver.scan().await.unwrap();
    let ours = found.into_iter().filter(|r| r.sandbox == *id && r.kind == "process");
    ours.map(|r| r.name.parse().unwrap()).collect()
}

fn status(pid: i32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

#[tokio::test]
async fn root_inside_is_nobody_outside_and_each_sandbox_another() {
    let harness = containers();
    let one = Sandbox::create(&harness, Resources::default()).await;
    let second = plan(RootFs::Host, Resources::default());
    one.driver.create(&second).await.unwrap();
    let other = Sandbox::connect(one.driver.clone(), second.id).await;
    let mut owners = Vec::new();
    for sandbox in [&one, &other] {
        for pid in pids(&*one.driver, &sandbox.id).await {
            let uid: u32 = status(pid, "Uid:").split('\t').next().unwrap().parse().unwrap();
            assert!(uid >= 0x7000_0000, "process {pid} runs as {uid}");
            assert_eq!(status(pid, "Seccomp:"), "2");
            owners.push(uid);
        }
    }
    owners.dedup();
    assert_eq!(owners.len(), 2, "{owners:?}");
    one.destroy().await;
    other.destroy().await;
}

#[tokio::test]
async fn the_agent_has_no_descriptor_but_its_own() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let pid = pids(&*sandbox.driver, &sandbox.id).await[0];
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap();
        let target = target.to_string_lossy();
        let known = ["/dev/null", "socket:", "anon_inode:", "pipe:", "/"];
        assert!(known.iter().any(|start| target.starts_with(start)), "{target}");
        assert!(!target.contains("atoll"), "leads to the host: {target}");
    }
    sandbox.destroy().await;
}

#[tokio::test]
async fn the_death_of_the_agent_is_reported_and_what_is_left_can_be_destroyed() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let (driver, id) = (sandbox.driver.clone(), sandbox.id.clone());
    let first = pids(&*driver, &id).await[0];
    let waiting = tokio::spawn({
        let (driver, id) = (driver.clone(), id.clone());
        async move { driver.died(&id).await }
    });
    let pid = rustix::process::Pid::from_raw(first).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap(), Death::Exited);
    assert_gone(driver.connect(&id).await);
    assert_gone(harness.driver().adopt(&id).await);
    sandbox.destroy().await;
    assert!(!Path::new(&format!("/proc/{first}")).try_exists().unwrap(), "a zombie is left");
}

#[tokio::test]
async fn ids_stay_claimed_across_drivers() {
    let harness = containers();
    let first = plan(RootFs::Host, Resources::default());
    harness.driver().create(&first).await.unwrap();
    // A new driver starts its search at the same place and must pass over what is taken.
    let driver = harness.driver();
    let second = plan(RootFs::Host, Resources::default());
    driver.create(&second).await.unwrap();
    let mut owners = Vec::new();
    for id in [&first.id, &second.id] {
        owners.push(status(pids(&driver, id).await[0], "Uid:"));
    }
    assert_ne!(owners[0], owners[1]);
    for id in [&first.id, &second.id] {
        driver.destroy(id).await.unwrap();
        assert_clean(&driver, id).await;
    }
}

#[tokio::test]
async fn a_long_data_directory_and_a_replaced_socket() {
    let mut harness = containers();
    harness.path = harness.path.join("d".repeat(120)).join("e".repeat(120));
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    assert_eq!(sandbox.see("echo far").await, "far");
    let socket = harness.path.join("sandboxes").join(sandbox.id.as_str()).join("guest.sock");
    std::fs::remove_file(&socket).unwrap();
    symlink("/run/other.sock", &socket).unwrap();
    let refused = sandbox.driver.connect(&sandbox.id).await;
    assert!(matches!(refused, Err(IsolationError::Kernel { .. })), "{refused:?}");
    sandbox.destroy().await;
}

/// A root with what a shell needs, made of the host's `/usr`, in two layers.
fn layers(dir: &Path) -> Vec<PathBuf> {
    let (low, high) = (dir.join("low"), dir.join("high"));
    std::fs::create_dir_all(low.join("bin")).unwrap();
    std::fs::create_dir_all(low.join("etc")).unwrap();
    std::fs::create_dir_all(high.join("etc")).unwrap();
    for (path, content) in
        [("low/etc/passwd", "root:x:0:0::/:/bin/sh\n"), ("low/etc/which", "low"), ("high/etc/which", "high")]
    {
        std::fs::write(dir.join(path), content).unwrap();
    }
    std::fs::write(low.join("owned"), "x").unwrap();
    std::os::unix::fs::chown(low.join("owned"), Some(33), Some(44)).unwrap();
    vec![low, high]
}

async fn create(harness: &Containers, layers: Vec<PathBuf>) -> (Plan, Result<(), IsolationError>) {
    let driver = harness.driver();
    let plan = plan(RootFs::Layers(layers), Resources::default());
    let made = driver.create(&plan).await;
    (plan, made)
}

#[tokio::test]
async fn an_image_without_mount_points_gets_them_and_stays_untouched() {
    let harness = containers();
    let image = tempfile::Builder::new().prefix("atoll-image-").tempdir().unwrap();
    let layers = layers(image.path());
    let (plan, made) = create(&harness, layers.clone()).await;
    made.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let driver = harness.driver();
    let pid = pids(&driver, &plan.id).await[0];
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    assert_eq!(std::fs::read_to_string(root.join("etc/which")).unwrap(), "high");
    assert!(root.join("proc/1").try_exists().unwrap() && root.join("dev/null").try_exists().unwrap());
    let base: u32 = status(pid, "Uid:").split('\t').next().unwrap().parse().unwrap();
    let owned = std::fs::metadata(root.join("owned")).unwrap();
    assert_eq!((owned.uid(), owned.gid()), (base + 33, base + 44));
    driver.destroy(&plan.id).await.unwrap();
    assert_clean(&driver, &plan.id).await;
    let names: Vec<_> = std::fs::read_dir(&layers[0]).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "the image was changed: {names:?}");
}

#[tokio::test]
async fn hostile_mount_points_are_refused_and_lead_nowhere() {
    let harness = containers();
    let driver = harness.driver();
    for name in ["proc", "dev", "sys", "etc"] {
        for target in ["/", "..", "/proc/self/cwd", "loop"] {
            let image = tempfile::Builder::new().prefix("atoll-image-").tempdir().unwrap();
            let layer = image.path().join("layer");
            std::fs::create_dir(&layer).unwrap();
            symlink(target, layer.join(name)).unwrap();
            symlink("loop", layer.join("loop")).unwrap();
            let plan = plan(RootFs::Layers(vec![layer]), Resources::default());
            let made = driver.create(&plan).await;
            assert!(matches!(made, Err(IsolationError::BadRoot(_))), "/{name} -> {target}: {made:?}");
            driver.destroy(&plan.id).await.unwrap();
            assert_clean(&driver, &plan.id).await;
        }
    }
}

#[tokio::test]
async fn a_file_in_place_of_a_mount_point_or_a_missing_layer() {
    let harness = containers();
    let image = tempfile::Builder::new().prefix("atoll-image-").tempdir().unwrap();
    std::fs::write(image.path().join("proc"), "file").unwrap();
    let (file, made) = create(&harness, vec![image.path().to_owned()]).await;
    assert!(matches!(made, Err(IsolationError::BadRoot(_))), "{made:?}");
    let (missing, made) = create(&harness, vec![image.path().join("missing")]).await;
    assert!(made.is_err());
    let (none, made) = create(&harness, Vec::new()).await;
    assert!(matches!(made, Err(IsolationError::BadRoot(_))), "{made:?}");
    let driver = harness.driver();
    for plan in [file, missing, none] {
        driver.destroy(&plan.id).await.unwrap();
        assert_clean(&driver, &plan.id).await;
    }
}

/// A sandbox's root covers what it was built in. Root inside may change the root of a process, and so climb as far up as there
/// is anything.
#[tokio::test]
async fn above_the_root_of_a_sandbox_there_is_nothing() {
    let harness = containers();
    let sandbox = Sandbox::create(&harness, Resources::default()).await;
    let climb = r#"mkdir -p /tmp/below; perl -e 'opendir my $top, "/" or die; chroot "/tmp/below" or die; chdir $top or die;
        chdir ".." for 1 .. 20; chroot "." or die; opendir my $here, "." or die;
        print join " ", sort grep !/^\.\.?$/, readdir $here'"#;
    let inside = sandbox.see("LC_ALL=C ls -A / | tr '\n' ' '").await;
    assert_eq!(sandbox.see(climb).await, inside.trim());
    assert_eq!(sandbox.see("grep -c ' / / ' /proc/self/mountinfo").await, "1");
    // Nor is there anything for who enters its mount namespace from outside.
    let pid = pids(&*sandbox.driver, &sandbox.id).await[0];
    let entered = std::process::Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-m", "/bin/sh", "-c", "cd /; ls -A | LC_ALL=C sort | tr '\n' ' '"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&entered.stdout).trim(), inside.trim(), "{entered:?}");
    sandbox.destroy().await;
}

#[tokio::test]
async fn links_in_etc_are_replaced_not_followed() {
    let harness = containers();
    let image = tempfile::Builder::new().prefix("atoll-image-").tempdir().unwrap();
    let etc = image.path().join("etc");
    std::fs::create_dir(&etc).unwrap();
    let victim = image.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    symlink(&victim, etc.join("resolv.conf")).unwrap();
    symlink("../../victim", etc.join("hosts")).unwrap();
    let (plan, made) = create(&harness, vec![image.path().to_owned()]).await;
    made.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    harness.driver().destroy(&plan.id).await.unwrap();
}

#[tokio::test]
async fn twenty_at_once() {
    let harness = containers();
    let driver = harness.driver();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let driver = driver.clone();
        tasks.push(tokio::spawn(async move {
            let plan = plan(RootFs::Host, Resources::default());
            driver.create(&plan).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
            driver.connect(&plan.id).await.unwrap();
            driver.destroy(&plan.id).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(driver.scan().await.unwrap(), []);
}

#[tokio::test]
async fn the_doctor_finds_this_host_fit() {
    let checks = containers().driver().doctor().await;
    for name in [
        "user_namespaces",
        "overlay",
        "disk_limit",
        "limit_cpu",
        "limit_memory",
        "limit_pids",
        "seccomp",
        "network",
    ] {
        let check = checks.iter().find(|check| check.name == name);
        assert!(check.is_some_and(|check| check.status == Status::Ok), "{name}: {check:?}");
    }
    assert!(checks.iter().any(|check| check.name == "kvm"), "{checks:?}");
}

#[tokio::test]
async fn a_dropped_driver_leaves_nothing_when_it_has_no_sandbox() {
    let harness = containers();
    let driver = harness.driver();
    // Disks may lie in a pool, where the directory is not part of their paths.
    let (dir, name) = (harness.path.display().to_string(), format!("/atoll-{}/", harness.instance));
    let images = || {
        let all = loops_in_use().unwrap().into_iter().map(|(_, image)| image);
        all.filter(|image| image.starts_with(&dir) || image.starts_with(&name)).collect::<Vec<_>>()
    };
    eventually("the pools are full", || async {
        images().iter().any(|image| image.contains("/disks/")).then_some(())
    })
    .await;
    drop(driver);
    let id = fresh_id();
    assert_gone(harness.driver().adopt(&id).await);
    eventually("every loop device is free", || async { images().is_empty().then_some(()) }).await;
    let cgroup = format!("/sys/fs/cgroup/unified/atoll-{}", harness.instance);
    assert!(!Path::new(&cgroup).try_exists().unwrap());
}

/// As udev does with each new device, only more often.
fn look_at_devices(stop: &std::sync::atomic::AtomicBool) {
    let mut block = vec![0; 64 << 10];
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        for number in 0..64 {
            let Ok(mut device) = std::fs::File::open(format!("/dev/loop{number}")) else { continue };
            // What cannot be read is no device just now.
            drop(std::io::Read::read(&mut device, &mut block));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_new_devices_harms_no_disk() {
    let harness = containers();
    let first = Sandbox::create(&harness, Resources::default()).await;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let looking = std::thread::spawn({
        let stop = stop.clone();
        move || look_at_devices(&stop)
    });
    for round in 0..40 {
        let plan = plan(RootFs::Host, Resources::default());
        let made = first.driver.create(&plan).await;
        assert!(made.is_ok(), "round {round}: {made:?}");
        first.driver.destroy(&plan.id).await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    looking.join().unwrap();
    first.destroy().await;
}

/// Without a journal ext4 looks at each inode that was freed lately whenever it makes a file; in a snapshot nothing may be
/// in the journal alone.
#[tokio::test(flavor = "multi_thread")]
async fn disks_have_a_journal_and_snapshots_an_empty_one() {
    let harness = containers();
    let parent = Sandbox::create(&harness, Resources::default()).await;
    // Of all that were made, the later half is there.
    let churn = "i=0; while :; do i=$((i+1)); mkdir /home/d$i; rm -rf /home/d$((i/2)); \
                 [ $i != 100 ] || touch /home/hundred; done";
    drop(parent.start("ex-churn", "root", churn).await);
    eventually("directories come and go", || async {
        (parent.run("test -e /home/hundred").await.code == 0).then_some(())
    })
    .await;
    for number in 0..5 {
        let artifact = SnapshotId::from_parts(2, number);
        parent.driver.snapshot(&parent.id, &artifact).await.unwrap();
        let disk = parent.driver.read_artifact(&artifact).await.unwrap();
        let mut features = [0; 8];
        disk.read_exact_at(&mut features, 1024 + 0x5C).unwrap();
        let has_journal = features[0] & 4 != 0;
        let has_to_be_recovered = features[4] & 4 != 0;
        assert_eq!((has_journal, has_to_be_recovered), (true, false));
        let plan =
            Plan { disk: DiskSource::Artifact(artifact.clone()), ..plan(RootFs::Host, Resources::default()) };
        parent.driver.create(&plan).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let child = Sandbox::connect(parent.driver.clone(), plan.id).await;
        let count: usize = child.see("ls -d /home/d* | wc -l").await.parse().unwrap();
        assert!(count >= 50, "{count} directories are there");
        child.destroy().await;
        parent.driver.remove_artifact(&artifact).await.unwrap();
    }
    parent.destroy().await;
}
