//! `atoll template build-defaults`: templates whose recipes the program carries.

use std::fs;
use std::path::Path;

use atoll_api::CreateBuild;
use atoll_build::Ignore;
use atoll_client::Client;
use atoll_core::build::{CommandText, StartFrom};
use atoll_core::service::Restart;

use super::sandbox::limits;
use crate::cli::{DefaultsArgs, EgressArgs};
use crate::failure::{Failure, Result};
use crate::output::Printer;

/// A file of the interpreter: its place in the context, and its content.
macro_rules! source {
    ($name:literal) => {
        (
            concat!("code-interpreter/code_interpreter/", $name),
            include_str!(concat!("../../../../images/code-interpreter/code_interpreter/", $name)),
        )
    };
}

/// The recipe. Its stages have the names of the templates.
const DOCKERFILE: &str = include_str!("../../../../images/Dockerfile");
/// The files that the recipe copies.
const FILES: [(&str, &str); 10] = [
    ("code-interpreter/pyproject.toml", include_str!("../../../../images/code-interpreter/pyproject.toml")),
    source!("__init__.py"),
    source!("__main__.py"),
    source!("app.py"),
    source!("cells.py"),
    source!("contexts.py"),
    source!("kernel.py"),
    source!("languages.py"),
    source!("messages.py"),
    ("code-interpreter/README.md", include_str!("../../../../images/code-interpreter/README.md")),
];
/// Presets of the hosts from which the recipe fetches packages.
const PRESETS: [&str; 3] = ["@debian", "@pypi", "@npm"];

/// A template that can be built.
struct Default {
    name: &'static str,
    start: Option<&'static str>,
    ready: Option<&'static str>,
    /// It is large: built when it is asked for by its name.
    by_name: bool,
}

/// The templates, each after those it begins with.
const DEFAULTS: [Default; 6] = [
    Default { name: "base", start: None, ready: None, by_name: false },
    Default { name: "modal-debian-slim", start: None, ready: None, by_name: false },
    Default { name: "runloop", start: None, ready: None, by_name: false },
    Default { name: "daytona", start: None, ready: None, by_name: false },
    Default {
        name: "code-interpreter-v1",
        start: Some("exec /opt/code-interpreter/venv/bin/python -m code_interpreter --home /home/user"),
        ready: Some("curl -fs -o /dev/null http://127.0.0.1:49999/health"),
        by_name: false,
    },
    Default { name: "desktop", start: None, ready: None, by_name: true },
];
/// A kernel takes seconds to start; on a busy host many.
const READY_TIMEOUT_MS: u64 = 120_000;

/// `atoll template build-defaults`
pub(super) async fn build_defaults(client: &Client, printer: Printer, args: DefaultsArgs) -> Result<()> {
    let resources = limits(&args.limits, args.disk);
    let egress = match args.egress.policy()? {
        Some(policy) => Some(policy),
        None => EgressArgs::presets(&PRESETS).policy()?,
    };
    let context = tempfile::tempdir().map_err(|error| Failure::io("cannot make a directory", error))?;
    write_files(context.path())?;
    for default in DEFAULTS {
        let named = args.names.iter().any(|name| name == default.name);
        if !named && (default.by_name || !args.names.is_empty()) {
            continue;
        }
        let from = ("FROM".to_owned(), args.from.clone());
        let request = CreateBuild {
            name: default.name.to_owned(),
            dockerfile: Some(DOCKERFILE.to_owned()),
            args: args.build_arg.iter().cloned().chain([from]).collect(),
            target: Some(default.name.to_owned()),
            no_cache: args.no_cache,
            start: default.start.map(|line| StartFrom::Command(CommandText::Shell(line.to_owned()))),
            // The service that runs code is started again, whatever the code did to it.
            restart: default.start.map(|_| Restart::Always),
            ready: super::template::ready(default.ready.map(str::to_owned), None, Some(READY_TIMEOUT_MS)),
            verify: true,
            resources,
            egress: egress.clone(),
            timeout_ms: args.timeout,
            ..CreateBuild::default()
        };
        let context = context.path().to_owned();
        super::build::run(client, printer, &request, context, Ignore::parse(""), false).await?;
    }
    Ok(())
}

/// Writes the files that the recipe copies.
fn write_files(root: &Path) -> Result<()> {
    for (name, content) in FILES {
        let path = root.join(name);
        let dir = path.parent().unwrap_or(root);
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(&path, content))
            .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_interpreter_is_carried() {
        let dir =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/code-interpreter/code_interpreter");
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for name in names.filter(|name| name.ends_with(".py")) {
            assert!(FILES.iter().any(|(carried, _)| carried.ends_with(&format!("/{name}"))), "{name}");
        }
    }

    #[test]
    fn every_template_is_a_stage_of_the_recipe() {
        for default in DEFAULTS {
            let stage = format!(" AS {}\n", default.name);
            assert!(DOCKERFILE.contains(&stage), "{}", default.name);
        }
        // Files are written where they are copied from.
        let dir = tempfile::tempdir().unwrap();
        write_files(dir.path()).unwrap();
        assert!(dir.path().join("code-interpreter/pyproject.toml").is_file());
    }
}
