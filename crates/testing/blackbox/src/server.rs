//! A running `atoll serve`.

mod answer;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_api::{CreateExec, CreateSandbox, ExecWithOutput, Sandbox};
use atoll_client::Client;
use atoll_core::secret::Secret;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tempfile::TempDir;

use crate::{host, level, program};

use answer::output_of;
pub use answer::{Answer, Output};

/// Longest that anything here may take, on a host that is busy with other tests and emulates machines.
const DEADLINE: Duration = Duration::from_secs(240);

/// Polls until `probe` gives something; panics with `what` after four minutes.
pub async fn wait_until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The program with a bare environment, so that nothing of the developer's configuration is used.
#[must_use]
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("HOME", "/nonexistent").env("TERM", "xterm").env("NO_COLOR", "1");
    command
}

/// A running `atoll serve` with a data directory of its own.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    data: PathBuf,
    dir: Option<TempDir>,
    log: PathBuf,
    child: Option<Child>,
    /// Where it is.
    pub url: String,
    /// The operator's key.
    pub key: String,
    /// A client with that key.
    pub client: Client,
    http: reqwest::Client,
    panics_are_wanted: bool,
    finished: bool,
}

/// An address that can be had again after a restart: its port is below those that the kernel gives to connections.
fn free_address() -> String {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.0.0.1:{}", FIRST + number % COUNT);
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

impl Server {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with further arguments.
    #[must_use]
    pub fn with(args: &[&str]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("atoll-blackbox-").tempdir_in("/var/tmp").expect("a directory");
        let data = dir.path().join("data");
        let mut server = Self::new(program(), args, data);
        server.dir = Some(dir);
        server
    }

    /// The same, with variables in its environment.
    #[must_use]
    pub fn with_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        let dir =
            tempfile::Builder::new().prefix("atoll-blackbox-").tempdir_in("/var/tmp").expect("a directory");
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut server = Self::new_with_env(program(), args, dir.path().join("data"), env);
        server.dir = Some(dir);
        server
    }

    /// Starts one on a data directory that the caller owns.
    #[must_use]
    pub fn on(data: &Path, args: &[&str]) -> Self {
        Self::new(program(), args, data.to_owned())
    }

    fn new(program: &Path, args: &[&str], data: PathBuf) -> Self {
        Self::new_with_env(program, args, data, Vec::new())
    }

    fn new_with_env(program: &Path, args: &[&str], data: PathBuf, env: Vec<(String, String)>) -> Self {
        let log =
            tempfile::Builder::new().prefix("atoll-blackbox-log-").tempfile_in("/var/tmp").expect("a file");
        let (_file, log) = log.keep().expect("keep a file");
        let mut server = Self {
            program: program.to_owned(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env,
            data,
            dir: None,
            log,
            child: None,
            url: String::new(),
            key: String::new(),
            client: Client::new("http://127.0.0.1:1", &Secret::new("none")).expect("a client"),
            http: reqwest::Client::new(),
            panics_are_wanted: false,
            finished: false,
        };
        if let Some(level) = level::asked() {
            level.set_up(&server.data);
        }
        let (url, key) = server.launch(&free_address(), "");
        server.key = key.expect("the first start makes a key");
        server.client = Client::new(&url, &Secret::new(server.key.clone())).expect("a client");
        server.url = url;
        if let Some(level) = level::asked() {
            level.import(&server.url, &server.key);
        }
        server
    }

    /// Starts the process and waits for its one line.
    fn launch(&mut self, listen: &str, failpoints: &str) -> (String, Option<String>) {
        let stdout = self.spawn(listen, failpoints);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("read the line of the server");
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("'{line}' is not what a server says: {error}\n{}", self.log()));
        (ready["url"].as_str().expect("a url").to_owned(), ready["api_key"].as_str().map(str::to_owned))
    }

    /// Starts the process, and gives its standard output.
    fn spawn(&mut self, listen: &str, failpoints: &str) -> ChildStdout {
        let log = File::options().append(true).create(true).open(&self.log).expect("a log");
        let mut command = command(&self.program);
        command
            .args(["serve", "--ready-json", "--ready", "1", "--listen", listen, "--data-dir"])
            .arg(&self.data);
        command.args(level::asked().into_iter().flat_map(|level| level.args()));
        // What the test gave counts, unless this start has fail points of its own.
        command.args(&self.args).env_remove("ATOLL_FAILPOINTS").envs(self.env.clone());
        if !failpoints.is_empty() {
            command.env("ATOLL_FAILPOINTS", failpoints);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("start the server");
        let stdout = child.stdout.take().expect("a pipe");
        self.child = Some(child);
        stdout
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The eight digits that name its things on the host.
    #[must_use]
    pub fn installation(&self) -> String {
        fs::read_to_string(self.data.join("installation")).expect("the installation's name").trim().to_owned()
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("a running server").id()).expect("a pid")
    }

    /// Whether it was started and not killed since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the server");
            child.wait().expect("wait for the server");
        }
    }

    /// Waits until it has ended by itself.
    pub fn wait_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("a running server");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("wait for the server") {
                return status;
            }
            if start.elapsed() > DEADLINE {
                self.child = Some(child);
                panic!("the server does not end\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, then waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("stop the server");
        self.wait_end()
    }

    /// Gives it further arguments from its next start on.
    pub fn add_args(&mut self, more: &[&str]) {
        self.args.extend(more.iter().map(|&arg| arg.to_owned()));
    }

    /// Gives it another data directory, which the caller owns, from its next start on.
    pub fn set_data(&mut self, data: &Path) {
        data.clone_into(&mut self.data);
    }

    /// Starts it again on the same address.
    pub fn restart(&mut self) {
        self.restart_with("");
    }

    /// Starts it again on the same address with fail points armed.
    pub fn restart_with(&mut self, failpoints: &str) {
        assert!(self.child.is_none(), "it runs");
        let listen = self.url.trim_start_matches("http://").to_owned();
        let (_url, key) = self.launch(&listen, failpoints);
        assert_eq!(key, None, "a second start makes no key");
    }

    /// Starts it again with fail points armed on which it dies by itself, maybe before it says that it is ready, and waits for
    /// that.
    pub fn restart_to_die(&mut self, failpoints: &str) {
        assert!(self.child.is_none(), "it runs");
        let listen = self.url.trim_start_matches("http://").to_owned();
        let _said = self.spawn(&listen, failpoints);
        assert!(!self.wait_end().success(), "it was to die\n{}", self.log());
    }

    // === using it ===

    /// A sandbox with defaults.
    pub async fn sandbox(&self) -> Sandbox {
        self.client.create_sandbox(&CreateSandbox::default()).await.expect("make a sandbox")
    }

    /// Starts a shell line.
    pub async fn shell(&self, sandbox: &str, line: &str) -> String {
        let create = CreateExec { shell: Some(line.to_owned()), ..CreateExec::default() };
        self.client.create_exec(sandbox, &create).await.expect("start a command").exec.id
    }

    /// Runs a command to its end.
    pub async fn run(&self, sandbox: &str, create: CreateExec) -> ExecWithOutput {
        let create = CreateExec { wait_ms: Some(60_000), ..create };
        self.client.create_exec(sandbox, &create).await.expect("run a command")
    }

    /// The same: exit code and both outputs.
    pub async fn output(&self, sandbox: &str, create: CreateExec) -> Output {
        output_of(&self.run(sandbox, create).await)
    }

    /// Runs a shell line to its end: exit code and both outputs.
    pub async fn sh(&self, sandbox: &str, line: &str) -> Output {
        self.output(sandbox, CreateExec { shell: Some(line.to_owned()), ..CreateExec::default() }).await
    }

    /// Runs the command line program against it.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.cli_with(args, b"")
    }

    /// The same, with standard input.
    pub fn cli_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .cli_command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the program");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("wait for the program");
        writer.join().expect("write a pipe");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The command line program, told where the server is.
    #[must_use]
    pub fn cli_command(&self) -> Command {
        let mut command = command(program());
        command.env("ATOLL_URL", &self.url).env("ATOLL_API_KEY", &self.key);
        command
    }

    /// A raw request with the operator's key.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.key)
    }

    /// A raw request without a key.
    pub fn bare(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.http.request(method, format!("{}{path}", self.url))
    }

    /// Sends a raw request.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.timeout(DEADLINE).send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.expect("a body").to_vec();
        Answer { status, headers, bytes }
    }

    // === its end ===

    /// For tests that inject panics: otherwise one in the log is a failure.
    pub fn tolerate_panics(&mut self) {
        self.panics_are_wanted = true;
    }

    /// Deletes every sandbox, stops the server and asserts that nothing of it is left on the host.
    pub async fn finish(mut self) {
        loop {
            let page =
                self.client.list_sandboxes(&atoll_client::ListSandboxes::default()).await.expect("a list");
            if page.items.is_empty() {
                break;
            }
            for sandbox in page.items {
                match self.client.delete_sandbox(&sandbox.id).await {
                    Err(error) if error.code() == Some(atoll_core::Code::SandboxNotFound) => {}
                    other => other.unwrap_or_else(|error| panic!("delete {}: {error}", sandbox.id)),
                }
            }
        }
        let leaks = self.client.list_leaks().await.expect("a list");
        assert!(leaks.items.is_empty(), "the server sees leaks: {leaks:?}");
        let panicked = !self.panics_are_wanted && self.log().contains("panicked at");
        assert!(self.stop().success(), "the server failed:\n{}", self.log());
        assert!(!panicked, "the server panicked:\n{}", self.log());
        self.assert_doctor_is_content();
        // The kernel releases the resources that were kept ready a moment after the process has ended.
        let installation = self.installation();
        let start = Instant::now();
        loop {
            let mut remains = host::remains(&installation, &self.data);
            remains.extend(host::left_in_kernel(&installation));
            if remains.is_empty() {
                break;
            }
            assert!(start.elapsed() < DEADLINE / 2, "left on the host: {remains:#?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        self.finished = true;
    }

    /// `atoll doctor --leaks` of a server that does not run.
    pub fn assert_doctor_is_content(&self) {
        let output = command(program())
            .args(["doctor", "--leaks", "--json", "--data-dir"])
            .arg(&self.data)
            .output()
            .expect("run the doctor");
        let error = String::from_utf8_lossy(&output.stderr);
        let found: Value = serde_json::from_slice(&output.stdout).expect(&error);
        assert_eq!(found["items"], serde_json::json!([]), "leaks: {error}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.finished {
            if let Some(mut child) = self.child.take() {
                drop(child.kill());
                drop(child.wait());
            }
            eprint_log(&self.log());
            // Without its rows every sandbox is a leak, and leaks can be removed.
            for name in ["atoll.db", "atoll.db-wal", "atoll.db-shm"] {
                drop(fs::remove_file(self.data.join(name)));
            }
            let mut doctor = command(program());
            doctor.args(["doctor", "--leaks", "--remove", "--data-dir"]).arg(&self.data);
            drop(doctor.stdout(Stdio::null()).status());
            // It may have had no room for that: nothing that stands still with a full disk may stay.
            let mut purge = command(program());
            purge.args(["purge", "--yes", "--data-dir"]).arg(&self.data);
            drop(purge.stdout(Stdio::null()).stderr(Stdio::null()).status());
        }
        drop(fs::remove_file(&self.log));
    }
}

#[expect(clippy::print_stderr, reason = "shown with the test that failed")]
fn eprint_log(log: &str) {
    eprintln!("--- the server's log ---\n{log}");
}
