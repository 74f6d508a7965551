//! The SSH clients that people have, told how to reach the server.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use atoll_api::{CreateSandbox, Sandbox};
use atoll_blackbox::Server;
use tempfile::TempDir;

/// A server, a sandbox `web`, and a key that is registered.
pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) sandbox: Sandbox,
    /// Keys, and the files that are copied.
    pub(crate) dir: TempDir,
}

impl Setup {
    pub(crate) async fn start() -> Self {
        Self::of(Server::start(), CreateSandbox::default()).await
    }

    /// With a server and a sandbox like this one.
    pub(crate) async fn of(server: Server, like: CreateSandbox) -> Self {
        let create = CreateSandbox { name: Some("web".to_owned()), ..like };
        let sandbox = server.client.create_sandbox(&create).await.unwrap();
        let dir = tempfile::Builder::new().prefix("atoll-ssh-").tempdir_in("/var/tmp").unwrap();
        let setup = Self { server, sandbox, dir };
        setup.make_key("key");
        setup.server.cli(&["ssh-key", "add", setup.path("key.pub").to_str().unwrap()]).ok();
        setup
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn make_key(&self, name: &str) {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(self.path(name))
            .status();
        assert!(made.unwrap().success());
    }

    pub(crate) fn port(&self) -> &str {
        self.server.url.rsplit_once(':').unwrap().1
    }

    /// One of the programs, told how to reach the server.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.dir.path());
        for option in [
            "BatchMode=yes".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "StrictHostKeyChecking=accept-new".to_owned(),
            "LogLevel=ERROR".to_owned(),
            format!("UserKnownHostsFile={}", self.path("known_hosts").display()),
            format!("IdentityFile={}", self.path("key").display()),
            format!("Port={}", self.port()),
        ] {
            command.arg("-o").arg(option);
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn ssh(&self, args: &[&str]) -> Output {
        self.command("ssh").arg("web@127.0.0.1").args(args).output().unwrap()
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The output of a program that succeeded.
pub(crate) fn ok(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}
