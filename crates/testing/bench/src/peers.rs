//! Other ways to run `true` on this machine: the floor, and other programs.
//!
//! Each is measured as people use it: by starting its command. An absent one is said to be absent.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::image;
use crate::report::Report;
use crate::stats::Samples;

const WARM_UP: usize = 5;
const RUNS: usize = 100;
/// Slow ones.
const RUNS_SLOW: usize = 20;

pub(crate) fn run(report: &mut Report) -> Result<()> {
    report.section("Peers, in the same run");
    report.table();
    let dir = bundle()?;
    row(report, "host: `posix_spawn /bin/true`", RUNS * 5, &mut || check(&mut Command::new("/bin/true")))?;
    let lines = [(
        "bwrap",
        vec![
            "--unshare-all",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/bin",
            "/bin",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "/bin/true",
        ],
    )];
    for (program, arguments) in lines {
        if !installed(program) {
            report.line(&format!("| {program} | not installed | | | | | |"));
            continue;
        }
        row(report, &format!("`{program} --unshare-all … true`"), RUNS, &mut || {
            check(Command::new(program).args(&arguments))
        })?;
    }
    for program in ["crun", "runc"] {
        if !installed(program) {
            report.line(&format!("| {program} | not installed | | | | | |"));
            continue;
        }
        oci(report, program, dir.path())?;
    }
    docker(report)
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn check(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if !done.status.success() {
        bail!("{command:?}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Measures, or says why not.
fn row(report: &mut Report, what: &str, runs: usize, once: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut samples = Samples::default();
    for number in 0..WARM_UP + runs {
        let start = Instant::now();
        if let Err(error) = once() {
            report.line(&format!("| {what} | does not work here: {} | | | | | |", first_line(&error)));
            return Ok(());
        }
        if number >= WARM_UP {
            samples.push(start.elapsed());
        }
    }
    report.row(what, &samples, None);
    Ok(())
}

fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().replace('|', "/")
}

/// An OCI bundle with our `true`.
fn bundle() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("atoll-bench-oci.").tempdir()?;
    tar::Archive::new(image::rootfs()?.as_slice()).unpack(dir.path().join("rootfs"))?;
    let namespaces: Vec<_> =
        ["pid", "network", "ipc", "uts", "mount"].map(|kind| serde_json::json!({ "type": kind })).into();
    let mounts: Vec<_> = [("/proc", "proc"), ("/dev", "tmpfs")]
        .map(|(place, kind)| serde_json::json!({ "destination": place, "type": kind, "source": kind }))
        .into();
    let config = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "env": [], "cwd": "/" },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bench",
        "mounts": mounts,
        "linux": { "namespaces": namespaces },
    });
    std::fs::write(dir.path().join("config.json"), serde_json::to_vec(&config)?)?;
    Ok(dir)
}

/// `crun run` and the like. crun refuses hosts with both versions of cgroups, so one shell for all
/// runs hides version 2 from it; the shell times nothing, it only waits for a line for each run.
fn oci(report: &mut Report, program: &str, bundle: &Path) -> Result<()> {
    use std::io::{BufRead as _, BufReader, Write as _};
    let script = "umount /sys/fs/cgroup/unified 2>/dev/null; cd \"$2\" || exit 1
        while read -r number; do \"$1\" --root \"$2/state\" run \"atoll-bench-$number\" >/dev/null 2>\"$2/error\"; echo $?; done";
    let mut shell = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", program])
        .arg(bundle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut orders = shell.stdin.take().context("the shell has no input")?;
    let mut answers = BufReader::new(shell.stdout.take().context("the shell has no output")?);
    let mut number = 0;
    row(report, &format!("`{program} run`"), RUNS, &mut || {
        number += 1;
        writeln!(orders, "{number}")?;
        let mut line = String::new();
        answers.read_line(&mut line)?;
        if line.trim() != "0" {
            bail!("{}", std::fs::read_to_string(bundle.join("error")).unwrap_or_default());
        }
        Ok(())
    })?;
    drop(orders);
    shell.wait()?;
    Ok(())
}

fn docker(report: &mut Report) -> Result<()> {
    let answers = Command::new("docker").arg("info").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match answers {
        Err(_) => report.line("| docker | not installed | | | | | |"),
        Ok(status) if !status.success() => {
            report.line("| docker | not measured: no daemon answers | | | | | |");
        }
        Ok(_) => return docker_runs(report),
    }
    Ok(())
}

fn docker_runs(report: &mut Report) -> Result<()> {
    const NAME: &str = "atoll-bench";
    let mut import = Command::new("docker").args(["import", "-", NAME]).stdin(Stdio::piped()).spawn()?;
    let mut input = import.stdin.take().context("docker has no input")?;
    std::io::Write::write_all(&mut input, &image::rootfs()?)?;
    drop(input);
    import.wait()?;
    row(report, "`docker run --rm`", RUNS_SLOW, &mut || {
        check(Command::new("docker").args(["run", "--rm", NAME, "/bin/true"]))
    })?;
    check(Command::new("docker").args(["rmi", NAME]))
}
