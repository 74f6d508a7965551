//! Recipes for agents: a template, the agent in it, and what both need of the network.
//!
//! The program carries those of `agents/`; any other folder with the same files is as good. `Dockerfile` is the template's,
//! `agent.json` the body of `POST /v1/agents`, `services.json` the services that the template begins with, if it has
//! any, and `recipe.json` ([`About`]) everything that these do not say.

use std::path::{Path, PathBuf};

use atoll_api::{CreateAgent, CreateService};
use atoll_core::Code;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Largest file of a recipe that is read, bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// A recipe of `agents/`: its name and its files.
struct Carried {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! carried {
    ($name:literal: $($file:literal),+) => {
        Carried {
            name: $name,
            files: &[$(($file, include_str!(concat!("../../../agents/", $name, "/", $file)))),+],
        }
    };
}

const CARRIED: [Carried; 9] = [
    carried!("claude-code": "Dockerfile", "agent.json", "recipe.json"),
    carried!("codex": "Dockerfile", "agent.json", "recipe.json", "config.toml"),
    carried!("deepagents": "Dockerfile", "agent.json", "recipe.json"),
    carried!("deepagents-cli": "Dockerfile", "agent.json", "recipe.json"),
    carried!("mini-swe-agent": "Dockerfile", "agent.json", "recipe.json", "speak.py"),
    carried!("opencode": "Dockerfile", "agent.json", "recipe.json", "opencode.json"),
    carried!("opencode-serve": "Dockerfile", "agent.json", "recipe.json", "opencode.json", "services.json"),
    carried!("python": "Dockerfile", "agent.json", "recipe.json", "agent.py"),
    carried!("typescript": "Dockerfile", "agent.json", "recipe.json", "agent.ts"),
];

/// The content of `recipe.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    /// What it is, in a line.
    #[serde(default)]
    pub(crate) about: String,
    /// Presets of hosts that building the template needs, such as `@npm`.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    /// The key of its model.
    #[serde(default)]
    pub(crate) key: Option<ModelKey>,
}

/// The key of an agent's model: the secret's and the variable's name, where it goes, and how such keys begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelKey {
    pub(crate) secret: String,
    pub(crate) host: String,
    #[serde(default)]
    pub(crate) prefix: Option<String>,
}

impl ModelKey {
    /// As `--secret` has it.
    pub(crate) fn option(&self) -> String {
        let prefix = self.prefix.as_ref().map(|prefix| format!(",prefix={prefix}")).unwrap_or_default();
        format!("{}={}{prefix}", self.secret, self.host)
    }
}

/// A recipe, with its files in a directory.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// The name of its template.
    pub(crate) name: String,
    pub(crate) about: About,
    pub(crate) dockerfile: String,
    pub(crate) agent: CreateAgent,
    /// The services that its template begins with.
    pub(crate) services: Vec<CreateService>,
    /// The context of its build.
    pub(crate) context: PathBuf,
    /// The directory that was written for it; removed when the recipe is dropped.
    _written: Option<tempfile::TempDir>,
}

/// A line of the catalogue.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    pub(crate) adapter: String,
    pub(crate) key: Option<ModelKey>,
}

/// The recipes that the program carries.
///
/// # Errors
/// None of them can fail to be read: a test reads all.
pub(crate) fn catalogue() -> Result<Vec<Entry>> {
    let entry = |carried: &Carried| {
        let about: About = json(carried.name, "recipe.json", file(carried, "recipe.json"))?;
        let agent: CreateAgent = json(carried.name, "agent.json", file(carried, "agent.json"))?;
        let adapter = agent.adapter.map(|adapter| adapter.as_str().to_owned()).unwrap_or_default();
        Ok(Entry { name: carried.name, about: about.about, adapter, key: about.key })
    };
    CARRIED.iter().map(entry).collect()
}

/// The recipe of this name, or that of a folder: a text with a `/` is a folder.
///
/// # Errors
/// When there is none, or its files are not what they should be.
pub(crate) fn find(text: &str) -> Result<Recipe> {
    if text.contains('/') {
        return in_folder(Path::new(text));
    }
    let Some(carried) = CARRIED.iter().find(|carried| carried.name == text) else {
        let names: Vec<_> = CARRIED.iter().map(|carried| carried.name).collect();
        return Err(Failure::Usage(format!(
            "there is no recipe '{text}': it is one of {}, or a folder such as ./{text}",
            names.join(", ")
        )));
    };
    let written = tempfile::tempdir().map_err(|error| Failure::io("cannot make a directory", error))?;
    for (name, content) in carried.files {
        let path = written.path().join(name);
        std::fs::write(&path, content)
            .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))?;
    }
    let recipe = read(text.to_owned(), written.path())?;
    Ok(Recipe { _written: Some(written), ..recipe })
}

fn in_folder(folder: &Path) -> Result<Recipe> {
    let cannot = |error| Failure::io(format!("cannot read {}", folder.display()), error);
    let real = folder.canonicalize().map_err(cannot)?;
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    atoll_core::spec::recipe_name("name", &name)
        .map_err(|error| Failure::Usage(format!("{}: {}", folder.display(), error.message)))?;
    read(name, &real)
}

fn read(name: String, folder: &Path) -> Result<Recipe> {
    let about = perhaps(&name, folder, "recipe.json")?;
    let services = perhaps(&name, folder, "services.json")?;
    let needed = |file: &str| {
        let path = folder.join(file);
        let missing = || Failure::Usage(format!("{} is missing: no recipe is without", path.display()));
        text(&path)?.ok_or_else(missing)
    };
    let agent = json(&name, "agent.json", &needed("agent.json")?)?;
    let dockerfile = needed("Dockerfile")?;
    Ok(Recipe { name, about, dockerfile, agent, services, context: folder.to_owned(), _written: None })
}

/// The content of a file that a recipe need not have.
fn perhaps<T: Default + serde::de::DeserializeOwned>(recipe: &str, folder: &Path, file: &str) -> Result<T> {
    text(&folder.join(file))?.map_or_else(|| Ok(T::default()), |text| json(recipe, file, &text))
}

fn file(carried: &Carried, name: &str) -> &'static str {
    carried.files.iter().find(|(known, _)| *known == name).map_or("", |(_, content)| content)
}

/// A file's text; `None` when it is not there.
fn text(path: &Path) -> Result<Option<String>> {
    use std::io::Read as _;
    let cannot = |error| Failure::io(format!("cannot read {}", path.display()), error);
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(cannot)?,
    };
    let mut text = String::new();
    file.take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Ok(Some(text))
}

fn json<T: serde::de::DeserializeOwned>(recipe: &str, file: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Failure::plain(Code::InvalidArgument, format!("{file} of the recipe {recipe} does not fit: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_is_carried_with_what_it_copies() {
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agents");
        let mut names: Vec<String> = std::fs::read_dir(folders)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_type().unwrap().is_dir())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, CARRIED.map(|carried| carried.name));
        for name in names {
            let recipe = find(&name).unwrap();
            assert!(recipe.about.key.is_some() && !recipe.about.about.is_empty(), "{name}");
            for line in recipe.dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")) {
                let file = line.split(' ').next().unwrap();
                assert!(recipe.context.join(file).is_file(), "{name} copies {file}");
            }
        }
        assert_eq!(catalogue().unwrap().len(), CARRIED.len());
    }

    #[test]
    fn a_folder_is_a_recipe_when_it_has_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mine");
        std::fs::create_dir(&folder).unwrap();
        let path = format!("{}/", folder.display());
        let missing = find(&path).unwrap_err().to_string();
        assert!(missing.contains("agent.json is missing"), "{missing}");
        std::fs::write(folder.join("agent.json"), "{\"argv\": [\"/bin/bot\"]}").unwrap();
        std::fs::write(folder.join("Dockerfile"), "FROM host\n").unwrap();
        let recipe = find(&path).unwrap();
        assert_eq!((recipe.name.as_str(), recipe.about), ("mine", About::default()));
        std::fs::write(folder.join("recipe.json"), "{\"kee\": 1}").unwrap();
        assert!(find(&path).unwrap_err().to_string().contains("unknown field"));
        assert!(find("nobody").unwrap_err().to_string().contains("opencode"));
    }
}
