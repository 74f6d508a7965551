//! The work in a devbox before it is `running`: its user, files, code, launch commands.
//!
//! A task does it; while the task lives the devbox is `initializing`. The outcome is kept with the sandbox, so that a
//! devbox whose setup broke off with a restart of the server is told as failed, not as running.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::exec::{ExecState, OutputStream};
use atoll_core::id::SandboxId;
use atoll_core::sharing::Needs;
use atoll_core::spec::{Command, ExecDraft, SandboxUpdate};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{self as kit, Bookmarks, Counting, Event, Feed, Offsets};
use atoll_dialect_kit::sentence;
use atoll_engine::{Caller as EngineCaller, Engine, Grant, Target};
use bytes::Bytes;
use serde::Deserialize;

use super::launch::User;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras, Phase};
use crate::files::{self, Home};
use crate::objects::Opened;

/// Most steps of one setup.
const STEPS_MAX_COUNT: usize = 256;
/// How long each wait for a command lasts.
const WAIT: Duration = Duration::from_secs(30);
/// Most characters of a failed command's output in the failure.
const TOLD_MAX_CHARS: usize = 1000;
/// Clones a repository. The token comes over standard input, so that it stands in no command line, no record and no
/// file of the repository.
const CLONE: &str = r#"IFS= read -r token || true
export token
cd
set --  "$1" "$2" "$3"
if [ -n "$token" ]; then
  git -c credential.helper='!f() { echo username=x-access-token; echo "password=$token"; }; f' clone -q "$1" "$2"
else
  GIT_TERMINAL_PROMPT=0 git clone -q "$1" "$2"
fi || exit
[ -z "$3" ] || git -C "$2" checkout -q "$3"
"#;
/// Unpacks an archive, compressed or not, and removes it.
const UNPACK: &str = r#"mkdir -p -- "$2" && tar -xf "$1" -C "$2"
code=$?
rm -f -- "$1"
exit $code
"#;
/// Makes a user.
const ADD_USER: &str = r#"id -u -- "$1" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash --uid "$2" -- "$1"
if [ -d /etc/sudoers.d ]; then
  printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\n' "$1" >"/etc/sudoers.d/devbox-$1" && chmod 440 "/etc/sudoers.d/devbox-$1"
fi
id -u -- "$1" >/dev/null
"#;

/// A repository to have in the devbox.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CodeMount {
    repo_name: String,
    repo_owner: String,
    token: Option<atoll_core::secret::Secret>,
    git_ref: Option<String>,
    install_command: Option<String>,
}

impl CodeMount {
    /// # Errors
    /// 400 for names that are not of an account and a repository: they stand in an address.
    pub(super) fn checkout(self) -> Result<Checkout> {
        let fits = |name: &String| {
            (1..=100).contains(&name.len())
                && !name.starts_with(['.', '-'])
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        if !fits(&self.repo_name) || !fits(&self.repo_owner) {
            return Err(Failure::bad("code mount: repo_owner and repo_name must be those of a repository"));
        }
        let url = format!("https://github.com/{}/{}.git", self.repo_owner, self.repo_name);
        Checkout::check_words(&url, self.git_ref.as_deref())?;
        let Self { repo_name: dir, token, git_ref: reference, install_command: install, .. } = self;
        Ok(Checkout { url, dir, reference, token, install })
    }
}

/// A repository that is cloned.
#[derive(Debug, Clone)]
pub(crate) struct Checkout {
    pub(crate) url: String,
    /// The directory: a path, from the home.
    pub(crate) dir: String,
    pub(crate) reference: Option<String>,
    pub(crate) token: Option<atoll_core::secret::Secret>,
    /// The command that runs in it then.
    pub(crate) install: Option<String>,
}

impl Checkout {
    /// Checks the arguments for git.
    ///
    /// # Errors
    /// 400.
    pub(crate) fn check_words(url: &str, reference: Option<&str>) -> Result<()> {
        let is_address = url.starts_with("https://")
            && url.len() <= 2048
            && url.bytes().all(|b| b.is_ascii_graphic() && !b"'@".contains(&b));
        if !is_address {
            return Err(Failure::bad("repository: must be an https address"));
        }
        if reference.is_some_and(|name| name.starts_with('-')) {
            return Err(Failure::bad("git_ref: must be the name of a branch or a tag"));
        }
        Ok(())
    }
}

/// The work to do, in this order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The user that runs commands, if it is not the usual user.
    pub(crate) user: Option<User>,
    /// Paths and contents.
    pub(crate) files: Vec<(String, String)>,
    /// Objects, and their paths: archives are unpacked there.
    pub(crate) objects: Vec<(Opened, String)>,
    pub(crate) code: Vec<Checkout>,
    pub(crate) commands: Vec<String>,
}

impl Plan {
    /// Whether there is nothing to do: root is there already.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.objects.is_empty()
            && self.code.is_empty()
            && self.commands.is_empty()
            && self.new_user().is_none()
    }

    fn new_user(&self) -> Option<&User> {
        self.user.as_ref().filter(|user| user.username != "root")
    }

    pub(crate) fn check(&self) -> Result<()> {
        let steps = self.files.len() + self.objects.len() + self.code.len() + self.commands.len();
        if steps > STEPS_MAX_COUNT {
            return Err(Failure::bad(format!("more than {STEPS_MAX_COUNT} mounts and launch commands")));
        }
        if let Some(user) = &self.user {
            atoll_core::spec::user("launch_parameters.user_parameters.username", &user.username)?;
            if (user.username == "root") != (user.uid == 0) {
                return Err(Failure::bad("launch_parameters.user_parameters: uid 0 is root's"));
            }
            if user.username.starts_with('-') || user.username.contains([':', '/', '.', ' ']) {
                return Err(Failure::bad("launch_parameters.user_parameters.username: is no name of a user"));
            }
        }
        Ok(())
    }
}

/// The devboxes that are being set up. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setups(Arc<Mutex<HashSet<SandboxId>>>);

/// Marks a setup as under way until it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    setups: Setups,
    id: SandboxId,
}

impl Setups {
    fn set(&self) -> std::sync::MutexGuard<'_, HashSet<SandboxId>> {
        // The set stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, id: &SandboxId) -> Live {
        self.set().insert(id.clone());
        Live { setups: self.clone(), id: id.clone() }
    }

    pub(crate) fn is_live(&self, id: &SandboxId) -> bool {
        self.set().contains(id)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.setups.set().remove(&self.id);
    }
}

/// Does the planned work and notes the outcome.
pub(crate) async fn run(engine: &Engine, id: &SandboxId, plan: Plan, by: &EngineCaller) {
    let done = steps(engine, id, plan, by).await;
    if let Err(error) = &done {
        tracing::info!(%error, sandbox = %id, "a devbox could not be set up");
    }
    // A devbox that was shut down meanwhile needs no note.
    if let Err(error) = note(engine, id, done.err().as_ref()).await
        && error.code != Code::SandboxNotFound
    {
        tracing::warn!(%error, sandbox = %id, "how a devbox was set up could not be noted");
    }
}

async fn note(engine: &Engine, id: &SandboxId, failed: Option<&Error>) -> Result<(), Error> {
    let mut extras = Extras::of(&engine.sandbox(id)?);
    extras.phase = failed.map(|_| Phase::Failed);
    extras.failure = failed.map(sentence);
    let text = atoll_dialect_kit::annotation::text(&extras)?;
    let annotations = BTreeMap::from([(extras::KEY.to_owned(), Some(text))]);
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    engine.update_sandbox(id, update).await.map(drop)
}

async fn steps(engine: &Engine, id: &SandboxId, plan: Plan, by: &EngineCaller) -> Result<(), Error> {
    let grant = engine.authorize(by, Needs::MANAGE, Target::Sandbox(id.as_str())).await?;
    let setup = Setup { engine, id, by, grant };
    if let Some(user) = plan.new_user() {
        setup.add_user(user).await?;
    }
    if !plan.files.is_empty() || !plan.objects.is_empty() {
        let home = Home::of(engine, id).await?;
        for (path, content) in plan.files {
            setup.recheck()?;
            files::write(engine, id, &home.resolve(&path)?, Bytes::from(content)).await?;
        }
        for (object, path) in plan.objects {
            setup.put_object(object, home.resolve(&path)?).await?;
        }
    }
    for code in &plan.code {
        setup.clone_code(code).await?;
    }
    for line in plan.commands {
        setup.command("a launch command", Command::Argv(vec![line]), None, None).await?;
    }
    Ok(())
}

/// Adds to an output, and keeps its end: a command may write without end.
fn keep_end(output: &mut String, text: &str) {
    output.push_str(text);
    let skip = output.chars().count().saturating_sub(TOLD_MAX_CHARS);
    let at = output.char_indices().nth(skip).map_or(0, |(at, _)| at);
    output.replace_range(..at, "");
}

struct Setup<'a> {
    engine: &'a Engine,
    id: &'a SandboxId,
    by: &'a EngineCaller,
    /// The right by which all of it is done.
    grant: Grant,
}

impl Setup<'_> {
    /// Before each step: steps may take long, and the key may be gone by then, or another have the devbox.
    fn recheck(&self) -> Result<(), Error> {
        self.engine.recheck(&self.grant, Needs::MANAGE)
    }

    async fn add_user(&self, user: &User) -> Result<(), Error> {
        let script = [ADD_USER, &user.username, &user.uid.to_string()].map(str::to_owned);
        self.command("making the user", Command::Argv(script.to_vec()), Some("root"), None).await?;
        let update = SandboxUpdate { user: Some(user.username.clone()), ..SandboxUpdate::default() };
        self.engine.update_sandbox(self.id, update).await.map(drop)
    }

    async fn put_object(&self, object: Opened, path: String) -> Result<(), Error> {
        self.recheck()?;
        if !object.is_archive() {
            return files::write_from(self.engine, self.id, &path, object.into_file()).await;
        }
        let archive = format!("/tmp/.{}", object.id);
        files::write_from(self.engine, self.id, &archive, object.into_file()).await?;
        let script = vec![UNPACK.to_owned(), archive, path];
        self.command("unpacking an object", Command::Argv(script), None, None).await
    }

    async fn clone_code(&self, code: &Checkout) -> Result<(), Error> {
        let reference = code.reference.clone().unwrap_or_default();
        let script = vec![CLONE.to_owned(), code.url.clone(), code.dir.clone(), reference];
        let token = code.token.as_ref().map(|token| format!("{}\n", token.reveal()));
        let input = token.unwrap_or_else(|| "\n".to_owned());
        let what = format!("cloning {}", code.url);
        self.command(&what, Command::Argv(script), None, Some(input)).await?;
        if let Some(install) = &code.install {
            let script = vec![format!("cd && cd -- \"$1\" && {install}"), code.dir.clone()];
            self.command("an install command", Command::Argv(script), None, None).await?;
        }
        Ok(())
    }

    /// Runs a script with its arguments in a login shell and waits for its end. Every exit code but 0 is an error.
    async fn command(
        &self,
        what: &str,
        script: Command,
        user: Option<&str>,
        input: Option<String>,
    ) -> Result<(), Error> {
        let Command::Argv(mut words) = script else { return Err(Error::invalid("command", "is no script")) };
        if words.len() > 1 {
            // `$0`, before the arguments.
            words.insert(1, "setup".to_owned());
        }
        let draft = |shell: &str| {
            let argv = [shell.to_owned(), "-lc".to_owned()].into_iter().chain(words.clone()).collect();
            let (user, stdin) = (user.map(str::to_owned), input.is_some());
            Ok(ExecDraft { user, stdin, ..ExecDraft::new(Command::Argv(argv)) })
        };
        self.recheck()?;
        let (engine, sandbox) = (self.engine, self.id);
        let mut view = kit::get_or_create(engine, sandbox, None, None, draft, self.by).await?;
        let exec = view.record.id.clone();
        if let Some(input) = input {
            match engine.write_stdin(sandbox, exec.as_str(), Bytes::from(input), true).await {
                Err(error) if !matches!(error.code, Code::ExecEnded | Code::StdinClosed) => {
                    return Err(error);
                }
                Err(_) | Ok(_) => {}
            }
        }
        while matches!(view.record.state, ExecState::Starting | ExecState::Running) {
            view = engine.wait_exec(sandbox, exec.as_str(), WAIT).await?;
        }
        let code = view.record.exit.as_ref().and_then(|exit| exit.code);
        if code == Some(0) {
            return Ok(());
        }
        let mut output = String::new();
        let marks = Bookmarks::default();
        let mut feed = Feed::open(engine, &view, &marks, Counting::Text, Offsets::default()).await?;
        while let Some(event) = feed.next_now().await? {
            match event {
                Event::Text { stream: OutputStream::Stdout | OutputStream::Stderr, text, .. } => {
                    keep_end(&mut output, &text);
                }
                Event::Raw { .. } => {}
                Event::End(_) => break,
            }
        }
        let code = code.map_or_else(|| "without a code".to_owned(), |code| format!("with {code}"));
        Err(Error::new(Code::StartFailed, format!("{what} ended {code}: {}", output.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(owner: &str, name: &str) -> Result<()> {
        let text = serde_json::json!({"repo_owner": owner, "repo_name": name}).to_string();
        serde_json::from_str::<CodeMount>(&text).unwrap().checkout().map(drop)
    }

    #[test]
    fn repositories_are_no_arguments() {
        assert!(mount("octo-org", "hello.world_1").is_ok());
        for (owner, name) in [("", "a"), ("a", "-x"), ("a", "../b"), ("a/b", "c"), ("a", "b c"), ("a", "b'c")]
        {
            assert!(mount(owner, name).is_err(), "{owner} {name}");
        }
    }

    #[test]
    fn the_end_of_an_output_is_kept() {
        let mut output = String::new();
        for _ in 0..100 {
            keep_end(&mut output, &"\u{e4}".repeat(TOLD_MAX_CHARS));
            assert_eq!(output.chars().count(), TOLD_MAX_CHARS);
        }
        keep_end(&mut output, "end");
        assert!(output.ends_with("\u{e4}end"));
        assert_eq!(output.chars().count(), TOLD_MAX_CHARS);
    }

    #[test]
    fn a_setup_lives_as_long_as_its_task() {
        let (setups, id) = (Setups::default(), SandboxId::from_parts(1, 1));
        let live = setups.begin(&id);
        assert!(setups.is_live(&id));
        drop(live);
        assert!(!setups.is_live(&id));
    }

    #[test]
    fn only_root_is_zero() {
        let plan = |username: &str, uid| Plan {
            user: Some(User { uid, username: username.to_owned() }),
            ..Plan::default()
        };
        assert!(plan("root", 0).check().is_ok() && plan("root", 0).is_empty());
        assert!(plan("dev", 1234).check().is_ok() && !plan("dev", 1234).is_empty());
        for (name, uid) in [("dev", 0), ("root", 5), ("-x", 5), ("a:b", 5), ("", 5), ("a/b", 5)] {
            assert!(plan(name, uid).check().is_err(), "{name}");
        }
    }
}
