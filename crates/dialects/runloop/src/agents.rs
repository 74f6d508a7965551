//! Agents: `/v1/agents`. An agent is a name for the source of a program (a repository, npm, PyPI, an object), and for
//! its setup. A devbox that mounts an agent installs it from inside before it is `running`: the devbox must reach the
//! source.

use atoll_engine::Caller as EngineCaller;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::devboxes::{Checkout, Plan};
use crate::error::{Failure, Result};
use crate::objects::Opened;
use crate::records::api::{self, Api};
use crate::records::{Kind, Record, Records, check_words};
use crate::request::{Caller, Manage};
use crate::{App, once};

/// Most commands of one setup.
const SETUP_MAX_COUNT: usize = 64;
/// Most bytes of each text.
const TEXT_MAX_BYTES: usize = 2048;
/// Comes before commands that may call the installed program.
const LOCAL: &str = "export PATH=\"$HOME/.local/bin:$PATH\" && ";

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/agents", post(api::create::<Agent>))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/agents", get(api::list::<Agent>))
        .route("/v1/agents/{agent}", get(api::one::<Agent>))
        .route("/v1/agents/{agent}/delete", post(api::remove::<Agent>))
}

/// An agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Agent {
    name: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    source: Option<Source>,
}

/// The source of an agent: `kind` names the part that is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    git: Option<Git>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    npm: Option<Package>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pip: Option<Package>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<Object>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Git {
    repository: String,
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_setup: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Package {
    package_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registry_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_setup: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Object {
    object_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_setup: Option<Vec<String>>,
}

/// The part of a source that is there.
enum Part<'a> {
    Git(&'a Git),
    Npm(&'a Package),
    Pip(&'a Package),
    Object(&'a Object),
}

impl Source {
    /// # Errors
    /// 400 where the part is missing that the type names, or where the part is not valid.
    fn part(&self) -> Result<Part<'_>> {
        let part = match self.kind.as_str() {
            "git" => self.git.as_ref().map(Part::Git),
            "npm" => self.npm.as_ref().map(Part::Npm),
            "pip" => self.pip.as_ref().map(Part::Pip),
            "object" => self.object.as_ref().map(Part::Object),
            _ => return Err(Failure::bad("source.type: git, npm, pip or object")),
        };
        let part = part.ok_or_else(|| Failure::bad(format!("source.{}: is missing", self.kind)))?;
        match &part {
            Part::Git(git) => Checkout::check_words(&git.repository, git.reference.as_deref())?,
            Part::Npm(package) | Part::Pip(package) => package.check()?,
            Part::Object(_) => {}
        }
        if part.setup().len() > SETUP_MAX_COUNT || part.setup().iter().any(|line| line.len() > TEXT_MAX_BYTES)
        {
            let why = format!("agent_setup: at most {SETUP_MAX_COUNT} commands of {TEXT_MAX_BYTES} bytes");
            return Err(Failure::bad(why));
        }
        Ok(part)
    }
}

impl Part<'_> {
    fn setup(&self) -> &[String] {
        let setup = match self {
            Self::Git(git) => &git.agent_setup,
            Self::Npm(package) | Self::Pip(package) => &package.agent_setup,
            Self::Object(object) => &object.agent_setup,
        };
        setup.as_deref().unwrap_or_default()
    }
}

impl Package {
    /// Checks the texts: they stand in a command line, between quotes.
    fn check(&self) -> Result<()> {
        let fits = |text: &str| {
            (1..=TEXT_MAX_BYTES).contains(&text.len())
                && !text.starts_with('-')
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"@/._-+~:[]=?&%".contains(&b))
        };
        if !fits(&self.package_name) {
            return Err(Failure::bad("source.package_name: is no name of a package"));
        }
        match self.registry_url.as_deref() {
            Some(url) if !fits(url) || !(url.starts_with("https://") || url.starts_with("http://")) => {
                Err(Failure::bad("source.registry_url: is no address of a registry"))
            }
            _ => Ok(()),
        }
    }
}

impl Kind for Agent {
    const WORD: &'static str = "Agent";
    const DIR: &'static str = "runloop-agents";
    const PREFIX: &'static str = "agt_";

    fn name(&self) -> &str {
        &self.name
    }
}

/// The agent that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    name: String,
    version: Option<String>,
    source: Option<Source>,
}

impl Api for Agent {
    type Asked = Asked;
    const PLURAL: &'static str = "agents";

    fn records(app: &App) -> &Records<Self> {
        &app.agents
    }

    fn apply(&mut self, asked: Asked, _: &App, _: &EngineCaller) -> Result<()> {
        check_words(&asked.name, None)?;
        let is_version = |text: &String| {
            text.len() <= 255 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
        };
        if !asked.version.as_ref().is_none_or(is_version) {
            return Err(Failure::bad("version: letters, digits, '.', '_', '-', '+'"));
        }
        if let Some(source) = &asked.source {
            source.part()?;
        }
        *self = Self { name: asked.name, version: asked.version, source: asked.source };
        Ok(())
    }

    fn view(record: &Record<Self>) -> Value {
        let Self { name, version, source } = &record.what;
        json!({
            "id": record.id,
            "name": name,
            "version": version,
            "source": source,
            "is_public": false,
            "create_time_ms": record.created_ms,
        })
    }
}

/// An agent that a client wants in a devbox.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AgentMount {
    agent_id: Option<String>,
    agent_name: Option<String>,
    agent_path: Option<String>,
    auth_token: Option<atoll_core::secret::Secret>,
}

impl AgentMount {
    /// Enters the agent's setup in the plan of a devbox. `lines` are commands that run once files and code are there.
    ///
    /// # Errors
    /// 400.
    pub(crate) async fn plan<S>(
        self,
        app: &App,
        caller: &Caller<S>,
        plan: &mut Plan,
        lines: &mut Vec<String>,
    ) -> Result<()> {
        let named = self.agent_id.or(self.agent_name).filter(|text| !text.is_empty());
        let named = named.ok_or_else(|| Failure::bad("agent_mount: give agent_id or agent_name"))?;
        let agent = app.agents.named(caller, &named).await.map_err(Failure::of_body)?.what;
        let nothing = || Failure::bad(format!("agent_mount: the agent {named} has no source"));
        let source = agent.source.as_ref().ok_or_else(nothing)?;
        let part = source.part()?;
        let place = || {
            let path = self.agent_path.clone().filter(|path| path.starts_with('/') && !path.contains('\''));
            path.ok_or_else(|| Failure::bad("agent_mount: agent_path: must be an absolute path"))
        };
        let within = |place: &str| format!("cd -- '{place}' && ");
        let begin = match &part {
            Part::Git(git) => {
                let dir = place()?;
                plan.code.push(Checkout {
                    url: git.repository.clone(),
                    dir: dir.clone(),
                    reference: git.reference.clone().or(agent.version.clone()),
                    token: self.auth_token,
                    install: None,
                });
                within(&dir)
            }
            Part::Object(object) => {
                let dir = place()?;
                plan.objects.push((Opened::new(app, caller, &object.object_id).await?, dir.clone()));
                within(&dir)
            }
            Part::Npm(package) => {
                let version =
                    agent.version.as_ref().map_or_else(String::new, |version| format!("@{version}"));
                let registry = package.registry_url.as_ref().map(|url| format!(" --registry '{url}'"));
                lines.push(format!(
                    "npm install --silent --no-audit --no-fund --global --prefix ~/.local{} '{}{version}'",
                    registry.unwrap_or_default(),
                    package.package_name
                ));
                LOCAL.to_owned()
            }
            Part::Pip(package) => {
                let version =
                    agent.version.as_ref().map_or_else(String::new, |version| format!("=={version}"));
                let registry = package.registry_url.as_ref().map(|url| format!(" --index-url '{url}'"));
                lines.push(format!(
                    "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user{} '{}{version}'",
                    registry.unwrap_or_default(),
                    package.package_name
                ));
                LOCAL.to_owned()
            }
        };
        lines.extend(part.setup().iter().map(|line| format!("{begin}{line}")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(source: Value) -> Result<()> {
        serde_json::from_value::<Source>(source).unwrap().part().map(drop)
    }

    #[test]
    fn what_stands_in_command_lines_is_one_word() {
        assert!(part(json!({"type": "npm", "npm": {"package_name": "@scope/pkg"}})).is_ok());
        let url = "https://registry.test/simple?a=b";
        assert!(
            part(json!({"type": "pip", "pip": {"package_name": "pkg[extra]", "registry_url": url}})).is_ok()
        );
        assert!(part(json!({"type": "git", "git": {"repository": "https://host.test/a/b.git"}})).is_ok());
        for bad in ["", "-x", "a b", "a'b", "a;b", "a$(b)", "a`b`"] {
            assert!(part(json!({"type": "npm", "npm": {"package_name": bad}})).is_err(), "{bad}");
            let pip = json!({"package_name": "a", "registry_url": bad});
            assert!(part(json!({"type": "pip", "pip": pip})).is_err(), "{bad}");
            assert!(part(json!({"type": "git", "git": {"repository": bad}})).is_err(), "{bad}");
        }
        for bad in [
            json!({"type": "x"}),
            json!({"type": "git"}),
            json!({"type": "npm", "pip": {"package_name": "a"}}),
        ] {
            assert!(part(bad.clone()).is_err(), "{bad}");
        }
    }
}
