//! The server under measurement: started, watched, stopped, and checked for leftovers.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::http::Address;

/// How long the server may take to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A running server with a data directory of its own.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Address,
    program: PathBuf,
    child: Child,
    data: TempDir,
}

/// How it is started.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    /// Idle sandboxes that it must have room for.
    pub(crate) idle: usize,
    /// The directory with the files that virtual machines need, if there are to be any.
    pub(crate) machines: Option<&'a Path>,
    /// Most sandboxes that it keeps ready of a kind that is asked for again and again.
    pub(crate) by_demand: u32,
    /// Keeps its log.
    pub(crate) verbose: bool,
}

impl Server {
    /// Starts it on a free port; waits until it is ready.
    pub(crate) async fn start(program: &Path, dir: &Path, settings: &Settings<'_>) -> Result<Self> {
        let Settings { idle, machines, by_demand, verbose } = *settings;
        let data = tempfile::Builder::new().prefix("atoll-bench.").tempdir_in(dir)?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--ready-json", "--log"])
            .arg(if verbose { "info" } else { "warn" })
            .arg("--data-dir")
            .arg(data.path().join("data"))
            .args(["--sandboxes-max", &(idle + 200).to_string()])
            .args(["--pool-demand", &by_demand.to_string()])
            .args(machines.into_iter().flat_map(|dir| [Path::new("--microvm-dir"), dir]))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take().context("the server has no standard output")?;
        let line = BufReader::new(output).lines().next_line().await?.context("the server did not start")?;
        let ready: Value = serde_json::from_str(&line)?;
        let text =
            |name: &str| ready[name].as_str().map(str::to_owned).context("the ready line lacks a field");
        let authority = text("url")?.trim_start_matches("http://").to_owned();
        let address = Address { authority, key: text("api_key")? };
        Ok(Self { address, program: program.to_owned(), child, data })
    }

    async fn delete_all(&self) -> Result<()> {
        let mut connection = self.address.connect().await?;
        loop {
            let page = connection.json(Method::GET, "/v1/sandboxes?limit=1000", &Value::Null).await?;
            let items = page["items"].as_array().context("the answer has no items")?;
            if items.is_empty() {
                return Ok(());
            }
            for id in items.iter().filter_map(|item| item["id"].as_str()) {
                connection.delete(id).await?;
            }
        }
    }

    fn pid(&self) -> Result<Pid> {
        let id = self.child.id().context("the server has ended")?;
        Pid::from_raw(i32::try_from(id)?).context("the server has no process id")
    }

    /// CPU time of the server process so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu_of(&self.pid()?.as_raw_nonzero().to_string())
    }

    /// Resident memory of the server process, KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?.as_raw_nonzero()))?;
        kib(&status, "VmRSS:").context("the server's memory is not known")
    }

    /// Stops it, removes everything that is left, and fails if anything was.
    pub(crate) async fn stop(mut self) -> Result<()> {
        // A part that failed half-way left sandboxes, and they would outlive the server.
        let emptied = self.delete_all().await;
        kill_process(self.pid()?, Signal::TERM)?;
        let ended = tokio::time::timeout(STOP_DEADLINE, self.child.wait()).await;
        ended.context("the server does not stop")??;
        if emptied.is_err() {
            // Where it has no descriptors left, say, it takes no connection.
            self.run(&["purge", "--yes"]).await?;
            return emptied;
        }
        self.run(&["doctor", "--leaks", "--remove"]).await
    }

    /// Has the program clean up after the server.
    async fn run(&self, command: &[&str]) -> Result<()> {
        let data = self.data.path().join("data");
        let output = Command::new(&self.program).args(command).arg("--data-dir").arg(data).output().await?;
        if !output.status.success() {
            let [said, complained] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
            bail!("something was left behind: {said}{complained}");
        }
        Ok(())
    }
}

/// CPU time of a process so far, without its children's.
fn cpu_of(pid: &str) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// CPU time of all processes of virtual machines so far.
pub(crate) fn cpu_of_machines() -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let command = pid.and_then(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
        let is_machine = command.is_some_and(|line| line.windows(11).any(|part| part == b"/vm/vmlinux"));
        if let Some(pid) = pid.filter(|_| is_machine) {
            // One that has just ended counts for nothing.
            sum += cpu_of(pid).unwrap_or_default();
        }
    }
    Ok(sum)
}

/// A value of a file of lines `Name: 123 kB`.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
