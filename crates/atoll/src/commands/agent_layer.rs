//! The programs of agents: `atoll agent build`, `versions`, `update`.

use std::os::fd::AsFd as _;

use atoll_api::{Agent, CreateBuild, CreateSandbox, UpdateAgent};
use atoll_client::Client;
use atoll_core::Code;
use atoll_core::layer::{LATEST, LAYERS_DIR, image_of};
use futures::{StreamExt as _, stream};
use serde::Serialize;

use super::build as builds;
use super::image::Upload;
use crate::archive;
use crate::cli::{BuildAgentArgs, UpdateAgentArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};
use crate::progress;
use crate::units::format_bytes;

/// Images in which packages are installed, where the user names no other one.
const NPM_IMAGE: &str = "node:22-slim";
const PYPI_IMAGE: &str = "python:3.12-slim";
/// Name of a program's directory while it is here.
const TAKEN: &str = "program";
/// Agents that are updated at once.
const UPDATES_AT_ONCE: usize = 16;

/// A version of a program.
#[derive(Debug, Serialize)]
struct Version {
    name: String,
    version: String,
    digest: String,
    size_bytes: u64,
    latest: bool,
}

/// The versions that are here, of one program or of all.
async fn list(client: &Client, name: Option<&str>) -> Result<Vec<Version>> {
    let images = client.list_images().await?.items;
    let versions = images.iter().flat_map(|image| {
        let parts = |reference: &String| {
            let (program, version) = reference.strip_prefix("agents.local/")?.rsplit_once(':')?;
            Some((program.to_owned(), version.to_owned()))
        };
        let named: Vec<_> = image.names.iter().filter_map(parts).collect();
        let latest: Vec<_> =
            named.iter().filter(|(_, version)| version == LATEST).map(|(name, _)| name.clone()).collect();
        named.into_iter().filter(|(_, version)| version != LATEST).map(move |(name, version)| Version {
            latest: latest.contains(&name),
            name,
            version,
            digest: image.digest.clone(),
            size_bytes: image.size_bytes,
        })
    });
    let mut versions: Vec<_> = versions.filter(|one| name.is_none_or(|name| one.name == name)).collect();
    // Numbers as numbers.
    versions.sort_by_key(|one| (one.name.clone(), one.version.parse::<u64>().ok(), one.version.clone()));
    Ok(versions)
}

/// `atoll agent versions`
pub(super) async fn versions(client: &Client, printer: Printer, name: Option<&str>) -> Result<()> {
    let versions = list(client, name).await?;
    printer.list(&versions, || {
        let rows = versions.iter().map(|one| {
            let latest = if one.latest { "latest" } else { "" };
            let size = format_bytes(one.size_bytes);
            [one.name.clone(), one.version.clone(), latest.to_owned(), progress::short(&one.digest), size]
        });
        table(["PROGRAM", "VERSION", "", "DIGEST", "SIZE"], rows)
    })
}

/// `atoll agent build`: prints the version.
pub(super) async fn build(client: &Client, printer: Printer, args: BuildAgentArgs) -> Result<()> {
    let version = match args.tag {
        Some(version) => version,
        None => {
            let known = list(client, Some(&args.name)).await?;
            let highest = known.iter().filter_map(|one| one.version.parse::<u64>().ok()).max();
            highest.unwrap_or(0).saturating_add(1).to_string()
        }
    };
    if version == LATEST {
        let why = format!("'{LATEST}' is always the version that was built last: choose another name");
        return Err(Failure::Usage(why));
    }
    let image = image_of(&args.name, &version).map_err(Failure::Plain)?;
    let latest = image_of(&args.name, LATEST).map_err(Failure::Plain)?;
    if list(client, Some(&args.name)).await?.iter().any(|one| one.version == version) {
        let why = format!("{} has a version '{version}' already: versions do not change", args.name);
        return Err(Failure::plain(Code::NameTaken, why));
    }
    let from = args.from.as_deref();
    let recipe = match (&args.npm, &args.pypi) {
        (Some(package), _) => Some(npm(&args.name, package, from)?),
        (_, Some(package)) => Some(pypi(&args.name, package, from)?),
        _ => None,
    };
    // Held until it is sent.
    let (upload, _taken) = match (recipe, args.sandbox, args.path) {
        (Some(dockerfile), ..) => {
            let sandbox = installed(client, printer, &args.name, dockerfile).await?;
            let taken = take(client, &sandbox, &args.name).await;
            client.delete_sandbox(&sandbox).await?;
            let taken = taken?;
            (Upload::open(printer, &taken.path().join(TAKEN)).await?, Some(taken))
        }
        (None, Some(sandbox), _) => {
            let taken = take(client, &sandbox, &args.name).await?;
            (Upload::open(printer, &taken.path().join(TAKEN)).await?, Some(taken))
        }
        (None, None, Some(path)) => (Upload::open(printer, &path).await?, None),
        (None, None, None) => {
            return Err(Failure::Usage("give a directory, --npm, --pypi or --sandbox".to_owned()));
        }
    };
    let (content, bar, source) = upload.split();
    let imported = source.explain(client.import_image(&image, Some(&latest), content).await).await?;
    bar.finish_and_clear();
    progress::image(printer, imported).await?;
    if printer.is_json() { Ok(()) } else { printer.line(&version) }
}

/// A word that goes into a line of the shell as it is.
fn word(field: &str, text: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@/._-=<>~^+[],:".contains(&byte);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain) {
        return Ok(());
    }
    Err(Failure::Usage(format!("--{field}: '{text}' is no name of a package")))
}

/// How a package of npm is installed.
fn npm(name: &str, package: &str, from: Option<&str>) -> Result<String> {
    word("npm", package)?;
    let (from, dir) = (from.unwrap_or(NPM_IMAGE), format!("{LAYERS_DIR}/{name}"));
    Ok(format!("FROM {from}\nRUN npm install --global --no-audit --no-fund --prefix {dir} '{package}'\n"))
}

/// How a package of PyPI is installed.
fn pypi(name: &str, package: &str, from: Option<&str>) -> Result<String> {
    word("pypi", package)?;
    let (from, dir) = (from.unwrap_or(PYPI_IMAGE), format!("{LAYERS_DIR}/{name}"));
    Ok(format!(
        "FROM {from}\nRUN python3 -m venv {dir} && {dir}/bin/pip install --no-cache-dir --disable-pip-version-check '{package}'\n"
    ))
}

/// Builds a template with a program, from the builder's cache where that has it, and a sandbox of it; gives the sandbox.
async fn installed(client: &Client, printer: Printer, name: &str, dockerfile: String) -> Result<String> {
    let template = format!("agent-{name}");
    let request =
        CreateBuild { name: template.clone(), dockerfile: Some(dockerfile), ..CreateBuild::default() };
    builds::made(client, printer, &request).await?;
    let create = CreateSandbox { template: Some(template), ..CreateSandbox::default() };
    Ok(client.create_sandbox(&create).await?.id)
}

/// Takes a program out of a sandbox, to a directory that is removed when it is let go of.
async fn take(client: &Client, sandbox: &str, name: &str) -> Result<tempfile::TempDir> {
    let what = "cannot keep the program for a moment";
    let dir = tempfile::tempdir().map_err(|error| Failure::io(what, error))?;
    let mut download = client.read_archive(sandbox, &format!("{LAYERS_DIR}/{name}")).await?;
    let root = std::fs::File::open(dir.path()).map_err(|error| Failure::io(what, error))?;
    let (queue, reader) = archive::reader();
    let task = tokio::task::spawn_blocking(move || {
        archive::extract(reader, root.as_fd(), Some(std::ffi::OsStr::new(TAKEN)))
    });
    while let Some(piece) = download.next().await {
        let failed = piece.is_err();
        if queue.send(piece.map_err(std::io::Error::other)).await.is_err() || failed {
            break;
        }
    }
    drop(queue);
    let lost = |error| Failure::io(what, error);
    task.await.map_err(std::io::Error::other).map_err(lost)?.map_err(std::io::Error::other).map_err(lost)?;
    Ok(dir)
}

/// Whether a sandbox was made from a template, in any version.
fn is_of(made_from: Option<&str>, template: &str) -> bool {
    made_from.and_then(|text| text.split(':').next()) == Some(template)
}

/// The agents of a program, of all sandboxes or of those of a template.
async fn of_program(client: &Client, program: &str, template: Option<&str>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for agent in client.list_agents().await?.items {
        if agent.layer.as_deref() != Some(program) {
            continue;
        }
        let wanted = match template {
            Some(template) => is_of(client.get_sandbox(&agent.sandbox).await?.template.as_deref(), template),
            None => true,
        };
        if wanted {
            names.push(agent.name);
        }
    }
    Ok(names)
}

/// The outcome for one agent.
#[derive(Debug, Serialize)]
struct Updated {
    agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// `atoll agent update`: the exit code says whether all have it.
pub(super) async fn update(client: &Client, printer: Printer, args: UpdateAgentArgs) -> Result<u8> {
    let agents = match &args.all {
        Some(program) => of_program(client, program, args.template.as_deref()).await?,
        None => args.agents,
    };
    let request = &UpdateAgent { version: args.to };
    let results: Vec<Updated> = stream::iter(agents)
        .map(async |agent| match client.update_agent(&agent, request).await {
            Ok(Agent { version, .. }) => Updated { agent, version, error: None },
            Err(error) => Updated { agent, version: None, error: Some(error.to_string()) },
        })
        .buffered(UPDATES_AT_ONCE)
        .collect()
        .await;
    printer.result(&results, || {
        let rows = results.iter().map(|one| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            [one.agent.clone(), text(&one.version), text(&one.error)]
        });
        table(["AGENT", "VERSION", ""], rows)
    })?;
    Ok(u8::from(results.iter().any(|one| one.error.is_some())))
}
