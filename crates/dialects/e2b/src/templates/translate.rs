//! Turns the clients' steps into the engine's.

use atoll_core::build::{
    CommandText, CopyStep, Ready, SNAPSHOT_SCHEME, StartFrom, Step, TEMPLATE_SCHEME, VERIFY_STEP,
};
use atoll_core::limits::BUILD_INSTRUCTIONS_MAX_COUNT;
use atoll_core::secret::Secret;
use atoll_engine::{Caller as EngineCaller, Engine, ImageLogin};
use serde::Deserialize;
use std::collections::BTreeMap;

use super::{Found, find};
use crate::error::{Failure, Result};

/// The user that runs steps, and later commands, until a step names another.
const USER: &str = "user";
const HOME: &str = "/home/user";
/// The clients' name for the end of a build, in which the template's start command has to get ready.
pub(super) const FINALIZE: &str = "finalize";
/// The image of clients that name none.
const DEFAULT_IMAGE: &str = "e2bdev/base";
/// How long a template may take to be ready, and how often the ready command runs, milliseconds.
const READY_TIMEOUT_MS: u64 = 600_000;
const READY_INTERVAL_MS: u64 = 2000;
/// Makes the user that the clients expect. Each part may be there already.
const PROVISION: &str = "set -e
if ! id -u user >/dev/null 2>&1; then
  if command -v useradd >/dev/null; then useradd --create-home --shell /bin/bash user
  else adduser -D -s /bin/bash user; fi
fi
mkdir -p /home/user
chown user: /home/user
if [ -d /etc/sudoers.d ]; then
  echo 'user ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/user
  chmod 0440 /etc/sudoers.d/user
fi";

/// The build that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Login>,
    force: bool,
    steps: Vec<AskedStep>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// The login for the registry of the build's image.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum Login {
    Registry {
        username: String,
        password: Secret,
    },
    /// A Google service account, whose key is the password.
    Gcp {
        service_account_json: Secret,
    },
    /// AWS keys are no password: the server would have to fetch one from AWS first.
    Aws {},
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AskedStep {
    #[serde(rename = "type")]
    kind: String,
    args: Vec<String>,
    files_hash: Option<String>,
    force: bool,
}

/// The client's step for an instruction of the engine's build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The text that the engine shows.
    pub(super) text: String,
    /// The client's name for it: `base`, `finalize`, or the number of its step.
    pub(super) step: String,
    /// The command, if it is one.
    pub(super) command: Option<String>,
}

/// A build of the engine.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) lines: Vec<Line>,
    /// Hashes of the archives that hold its files.
    pub(super) archives: Vec<String>,
    pub(super) no_cache: bool,
    pub(super) start: Option<StartFrom>,
    pub(super) login: Option<ImageLogin>,
    pub(super) ready: Option<Ready>,
}

/// The engine's build for an order.
///
/// # Errors
/// 400 for an order that is malformed or not supported.
pub(super) async fn plan(engine: &Engine, asked: &Asked, caller: &EngineCaller) -> Result<Plan> {
    let login = login(asked)?;
    let base = base(engine, asked, caller).await?;
    let plan = Plan {
        no_cache: asked.force || asked.steps.iter().any(|step| step.force),
        steps: Vec::new(),
        lines: Vec::new(),
        archives: Vec::new(),
        login,
        start: text(asked.start_cmd.as_ref()).map(|line| StartFrom::Command(bash(line))),
        ready: text(asked.ready_cmd.as_ref()).map(|line| Ready {
            command: Some(bash(line)),
            port: None,
            timeout_ms: Some(READY_TIMEOUT_MS),
            interval_ms: Some(READY_INTERVAL_MS),
        }),
    };
    translate(plan, base, &asked.steps)
}

/// The login for the registry of the build's image. Source of the name of Google's user: their documentation of
/// Docker's authentication with a service account key.
fn login(asked: &Asked) -> Result<Option<ImageLogin>> {
    let (Some(registry), Some(image)) = (&asked.from_image_registry, text(asked.from_image.as_ref())) else {
        return Ok(None);
    };
    let (username, password) = match registry {
        Login::Registry { username, password } => (username.clone(), password.clone()),
        Login::Gcp { service_account_json } => ("_json_key".to_owned(), service_account_json.clone()),
        Login::Aws {} => {
            return Err(Failure::bad(
                "fromImageRegistry: keys of AWS are not taken; give the password that 'aws ecr get-login-password' prints, with the user AWS",
            ));
        }
    };
    Ok(Some(ImageLogin { image: image.to_owned(), username, password }))
}

fn text(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

fn bash(line: &str) -> CommandText {
    CommandText::Argv(["/bin/bash", "-l", "-c", line].map(str::to_owned).to_vec())
}

/// The beginning of a build.
#[derive(Debug)]
struct Base {
    image: String,
    /// The user that runs its commands, and their working directory.
    user: String,
    workdir: String,
}

impl Base {
    fn image(image: String) -> Self {
        Self { image, user: USER.to_owned(), workdir: HOME.to_owned() }
    }
}

async fn base(engine: &Engine, asked: &Asked, caller: &EngineCaller) -> Result<Base> {
    match (text(asked.from_image.as_ref()), text(asked.from_template.as_ref())) {
        (Some(_), Some(_)) => Err(Failure::bad("give fromImage or fromTemplate, not both")),
        (Some(image), None) if image.split(':').next() == Some(DEFAULT_IMAGE) => {
            Ok(Base::image(engine.default_image()))
        }
        (Some(image), None) => Ok(Base::image(image.to_owned())),
        (None, None) => Ok(Base::image(engine.default_image())),
        (None, Some(template)) => match find(engine, template, caller).await? {
            Found::Base => Ok(Base::image(engine.default_image())),
            Found::Template(record) => Ok(Base {
                image: format!("{TEMPLATE_SCHEME}{}:{}", record.name, record.version),
                user: record.spec.user.unwrap_or_else(|| USER.to_owned()),
                workdir: record.spec.workdir.unwrap_or_else(|| HOME.to_owned()),
            }),
            Found::Snapshot { id, user, workdir, .. } => Ok(Base {
                image: format!("{SNAPSHOT_SCHEME}{id}"),
                user,
                workdir: workdir.unwrap_or_else(|| HOME.to_owned()),
            }),
        },
    }
}

fn translate(mut plan: Plan, base: Base, steps: &[AskedStep]) -> Result<Plan> {
    // The engine refuses more, but before that each archive of a step is looked for.
    if steps.len() > BUILD_INSTRUCTIONS_MAX_COUNT {
        return Err(Failure::bad(format!("steps: there are more than {BUILD_INSTRUCTIONS_MAX_COUNT}")));
    }
    plan.push(Step::From(base.image), "base", None);
    plan.push(Step::User("root".to_owned()), "base", None);
    plan.push(Step::Run(CommandText::Shell(PROVISION.to_owned())), "base", None);
    let mut user = base.user;
    plan.push(Step::User(user.clone()), "base", None);
    plan.push(Step::Workdir(base.workdir), "base", None);
    for (index, step) in steps.iter().enumerate() {
        let number = (index + 1).to_string();
        let arg = |at: usize| step.args.get(at).map(String::as_str).filter(|arg| !arg.is_empty());
        let missing = || Failure::bad(format!("steps.{index}: an argument of {} is missing", step.kind));
        match step.kind.as_str() {
            "RUN" => {
                let line = arg(0).ok_or_else(missing)?;
                let other = arg(1).filter(|other| *other != user);
                if let Some(other) = other {
                    plan.push(Step::User(other.to_owned()), &number, None);
                }
                plan.push(Step::Run(bash(line)), &number, Some(line));
                if other.is_some() {
                    plan.push(Step::User(user.clone()), &number, None);
                }
            }
            "ENV" => {
                if step.args.len() % 2 == 1 {
                    return Err(missing());
                }
                let pairs = step.args.chunks_exact(2);
                let pairs: BTreeMap<_, _> = pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect();
                if !pairs.is_empty() {
                    plan.push(Step::Env(pairs), &number, None);
                }
            }
            "WORKDIR" => plan.workdir(arg(0).ok_or_else(missing)?, &user, &number),
            "USER" => {
                user = arg(0).ok_or_else(missing)?.to_owned();
                atoll_core::spec::user("user", &user).map_err(|error| Failure::of(&error))?;
                plan.push(Step::User("root".to_owned()), &number, None);
                let make = format!(
                    "id -u '{user}' >/dev/null 2>&1 || if command -v useradd >/dev/null; \
                     then useradd --create-home --shell /bin/bash '{user}'; else adduser -D -s /bin/bash '{user}'; fi"
                );
                plan.push(Step::Run(CommandText::Shell(make)), &number, None);
                if arg(1) == Some("true") {
                    let sudo = format!(
                        "mkdir -p /etc/sudoers.d && echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/'{user}'"
                    );
                    plan.push(Step::Run(CommandText::Shell(sudo)), &number, None);
                }
                plan.push(Step::User(user.clone()), &number, None);
            }
            "COPY" => {
                let hash = step.files_hash.as_deref().ok_or_else(missing)?;
                let (from, to) = (arg(0).ok_or_else(missing)?, arg(1).ok_or_else(missing)?);
                plan.copy(hash, from, to, arg(2).unwrap_or(&user), arg(3), &number)?;
            }
            other => {
                let other = atoll_core::error::shorten(other);
                return Err(Failure::bad(format!("steps.{index}: there is no step '{other}'")));
            }
        }
    }
    plan.lines.push(Line { text: VERIFY_STEP.to_owned(), step: FINALIZE.to_owned(), command: None });
    Ok(plan)
}

impl Plan {
    fn push(&mut self, step: Step, number: &str, command: Option<&str>) {
        let text = match &step {
            Step::Run(CommandText::Argv(argv)) => format!("RUN {}", argv.join(" ")),
            Step::Run(CommandText::Shell(line)) => format!("RUN {line}"),
            Step::Copy(copy) => format!("COPY {} {}", copy.sources.join(" "), copy.destination),
            Step::Workdir(dir) => format!("WORKDIR {dir}"),
            Step::User(user) => format!("USER {user}"),
            Step::From(image) => format!("FROM {image}"),
            Step::Env(_) | Step::Label(_) | Step::Cmd(_) | Step::Entrypoint(_) => String::new(),
        };
        self.lines.push(Line { text, step: number.to_owned(), command: command.map(str::to_owned) });
        self.steps.push(step);
    }

    /// The build makes the working directory, so that one that cannot be made fails there. It belongs to the user that
    /// works in it; a directory that exists stays as it is.
    fn workdir(&mut self, dir: &str, user: &str, number: &str) {
        const MAKE: &str = r#"set -e; [ -d "$1" ] && exit; mkdir -p -- "$1"; chown -- "$2": "$1""#;
        self.push(Step::User("root".to_owned()), number, None);
        let make = ["/bin/sh", "-c", MAKE, "sh", dir, user].map(str::to_owned).to_vec();
        self.push(Step::Run(CommandText::Argv(make)), number, None);
        self.push(Step::User(user.to_owned()), number, None);
        self.push(Step::Workdir(dir.to_owned()), number, None);
    }

    /// Copies files of an archive, which lie below its hash in the context.
    fn copy(
        &mut self,
        hash: &str,
        from: &str,
        to: &str,
        owner: &str,
        mode: Option<&str>,
        number: &str,
    ) -> Result<()> {
        super::archives::check_hash(hash)?;
        let bare = from.trim_start_matches("./").trim_start_matches('/');
        if bare.split('/').any(|part| part == "..") {
            return Err(Failure::bad("COPY: a source must not lead out of the archive"));
        }
        let source =
            if bare.is_empty() || bare == "." { format!("{hash}/") } else { format!("{hash}/{bare}") };
        // Several files go into a directory, even if the client wrote no slash behind it.
        let several = bare.contains(['*', '?', '[']) && !to.ends_with('/');
        let destination = if several { format!("{to}/") } else { to.to_owned() };
        let copy = CopyStep {
            sources: vec![source],
            destination,
            from: None,
            user: Some(owner.to_owned()),
            mode: mode.map(str::to_owned),
            // A client that wants the targets instead of the links (`resolve_symlinks`) has put those into the archive.
            keep_links: true,
        };
        if !self.archives.iter().any(|known| known == hash) {
            self.archives.push(hash.to_owned());
        }
        self.push(Step::Copy(copy), number, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Plan> {
        let asked: Asked = serde_json::from_str(text).unwrap();
        let plan = Plan {
            steps: Vec::new(),
            lines: Vec::new(),
            archives: Vec::new(),
            no_cache: false,
            start: None,
            login: None,
            ready: None,
        };
        translate(plan, Base::image("image".to_owned()), &asked.steps)
    }

    #[test]
    fn steps_keep_their_numbers() {
        let hash = "a".repeat(64);
        let plan = of(&format!(
            r#"{{"steps":[{{"type":"RUN","args":["make","root"]}},{{"type":"ENV","args":["A","1"]}},
                {{"type":"COPY","args":["src/*","app","",""],"filesHash":"{hash}"}},
                {{"type":"USER","args":["web","true"]}},{{"type":"RUN","args":["true"]}}]}}"#
        ))
        .unwrap();
        let run = plan.lines.iter().find(|line| line.command.as_deref() == Some("make")).unwrap();
        assert_eq!((run.step.as_str(), run.text.as_str()), ("1", "RUN /bin/bash -l -c make"));
        assert_eq!(plan.lines.last().unwrap().step, FINALIZE);
        assert_eq!(plan.lines[plan.lines.len() - 2].step, "5");
        assert_eq!(plan.steps.len() + 1, plan.lines.len());
        assert_eq!(plan.archives, std::slice::from_ref(&hash));
        let copy = plan.steps.iter().find_map(|step| match step {
            Step::Copy(copy) => Some(copy),
            _ => None,
        });
        let copy = copy.unwrap();
        assert_eq!(
            (copy.sources[0].as_str(), copy.destination.as_str()),
            (&*format!("{hash}/src/*"), "app/")
        );
        assert_eq!(copy.user.as_deref(), Some("user"));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bad in [
            r#"{"steps":[{"type":"RUN","args":[]}]}"#,
            r#"{"steps":[{"type":"ENV","args":["A"]}]}"#,
            r#"{"steps":[{"type":"NONE","args":[]}]}"#,
            r#"{"steps":[{"type":"COPY","args":["a","b"],"filesHash":"../x"}]}"#,
            r#"{"steps":[{"type":"USER","args":["a'; rm -rf /"]}]}"#,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let hash = "a".repeat(64);
        let many =
            vec![format!(r#"{{"type":"COPY","args":["a","b"],"filesHash":"{hash}"}}"#); 1001].join(",");
        assert!(of(&format!(r#"{{"steps":[{many}]}}"#)).is_err());
        let out = format!(r#"{{"steps":[{{"type":"COPY","args":["../x","b"],"filesHash":"{hash}"}}]}}"#);
        assert!(of(&out).is_err());
    }
}
