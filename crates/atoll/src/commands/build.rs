//! Builds: `template build`, and `build ls`, `show`, `log`, `cancel`, `cache`.

use std::path::{Path, PathBuf};

use atoll_api::{Build, BuildCacheEntry, BuildList, CreateBuild};
use atoll_build::Ignore;
use atoll_client::{Client, ListBuilds, ResumePolicy};
use atoll_core::build::{BuildEvent, BuildFailure, BuildState, CommandText, StartFrom};
use atoll_core::limits::{BUILD_SECRET_MAX_BYTES, DOCKERFILE_MAX_BYTES, PAGE_MAX_COUNT};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};

use super::image::Upload;
use super::sandbox::limits;
use crate::build_view::View;
use crate::cli::{BuildArgs, BuildCacheCommand, BuildCommand, BuildSecret, SecretSource, read_policy};
use crate::config;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::signals::Stops;
use crate::units::{format_bytes, format_duration_ms};

/// `atoll template build`
pub(super) async fn template_build(client: &Client, printer: Printer, args: BuildArgs) -> Result<()> {
    let (context, detach) = (args.context.clone(), args.detach);
    let (request, ignore) = request(args)?;
    run(client, printer, &request, context, ignore, detach).await
}

/// Begins a build, sends its context if it wants one, and shows it until it ends.
pub(super) async fn run(
    client: &Client,
    printer: Printer,
    request: &CreateBuild,
    context: PathBuf,
    ignore: Ignore,
    detach: bool,
) -> Result<()> {
    match to_end(client, printer, request, context, ignore, detach).await? {
        Some(ended) => finish(printer, ended),
        None => Ok(()),
    }
}

/// The same without a context, and without a last word when all went well.
pub(super) async fn made(client: &Client, printer: Printer, request: &CreateBuild) -> Result<()> {
    made_in(client, printer, request, PathBuf::new(), Ignore::default()).await
}

/// The same with a context.
pub(super) async fn made_in(
    client: &Client,
    printer: Printer,
    request: &CreateBuild,
    context: PathBuf,
    ignore: Ignore,
) -> Result<()> {
    match to_end(client, printer, request, context, ignore, false).await? {
        Some(failed @ Ended::Not(_)) => finish(printer, failed),
        Some(Ended::Made(_)) | None => Ok(()),
    }
}

/// How a build ended; nothing if the user does not wait for that (`detach`).
async fn to_end(
    client: &Client,
    printer: Printer,
    request: &CreateBuild,
    context: PathBuf,
    ignore: Ignore,
    detach: bool,
) -> Result<Option<Ended>> {
    let mut stops = Stops::catch()?;
    let build = client.create_build(request).await?;
    if build.needs_context {
        let sent = tokio::select! {
            sent = send_context(client, printer, &build.id, context, ignore) => sent,
            stop = stops.next() => Err(stop.failure()),
        };
        if let Err(failure) = sent {
            // Without its context the build would wait for a while. The failure matters, not an error of this call.
            drop(client.cancel_build(&build.id).await);
            return Err(failure);
        }
    }
    if detach {
        printer.result(&build, || build.id.clone())?;
        return Ok(None);
    }
    tokio::select! {
        ended = follow(client, printer, &build.id, true) => ended.map(Some),
        stop = stops.next() => {
            printer.note("cancelling the build");
            client.cancel_build(&build.id).await?;
            Err(stop.failure())
        }
    }
}

/// The last word on a build. With `--json` the stream has said it already.
fn finish(printer: Printer, ended: Ended) -> Result<()> {
    match ended {
        Ended::Made(template) if printer.is_json() => drop(template),
        Ended::Made(template) => printer.line(&template)?,
        Ended::Not(failure) => {
            if let Some(output) = &failure.output
                && !printer.is_json()
            {
                printer.note(&format!(
                    "\nlast output of {}:\n{output}",
                    failure.step.as_deref().unwrap_or("the step")
                ));
            }
            let BuildFailure { code, message, hint, .. } = failure;
            return Err(Failure::Plain(Error { code, message, hint }));
        }
    }
    Ok(())
}

fn request(args: BuildArgs) -> Result<(CreateBuild, Ignore)> {
    let file = args.file.unwrap_or_else(|| args.context.join("Dockerfile"));
    let text = read(&file, DOCKERFILE_MAX_BYTES)?;
    let is_list = file.extension().is_some_and(|extension| extension == "json");
    let ignore = ignore_text(&args.context, &file)?;
    let name = match args.name {
        Some(name) => name,
        None => directory_name(&args.context)?,
    };
    let (mut dockerfile, mut steps) = (None, None);
    if is_list {
        let list = serde_json::from_str(&text);
        steps = Some(list.map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?);
    } else {
        dockerfile = Some(text);
    }
    let start = match (args.start_cmd, args.start_image) {
        (Some(line), _) => Some(StartFrom::Command(CommandText::Shell(line))),
        (None, true) => Some(StartFrom::Image),
        (None, false) => None,
    };
    let ready = super::template::ready(args.ready_cmd, args.ready_port, args.ready_timeout);
    let template_egress = args.template_egress.as_deref().map(read_policy).transpose()?;
    let rules = Ignore::parse(ignore.as_deref().unwrap_or_default());
    let request = CreateBuild {
        name,
        tags: args.tag,
        dockerfile,
        steps,
        ignore,
        args: args.build_arg.into_iter().collect(),
        secrets: args.build_secret.into_iter().map(secret).collect::<Result<_>>()?,
        target: args.target,
        no_cache: args.no_cache,
        start,
        ready,
        restart: args.restart,
        verify: args.verify,
        isolation: args.isolation,
        memory: args.from_memory,
        resources: limits(&args.limits, args.disk),
        labels: args.label.into_iter().collect(),
        egress: args.egress.policy()?,
        template_egress,
        services: args.services.services()?,
        timeout_ms: args.timeout,
        ..CreateBuild::default()
    };
    Ok((request, rules))
}

/// A secret of a build, with its value.
fn secret(secret: BuildSecret) -> Result<(String, Secret)> {
    let value = match &secret.from {
        SecretSource::File(path) => read(path, BUILD_SECRET_MAX_BYTES)?,
        SecretSource::Variable(name) => config::variable(name)?.ok_or_else(|| {
            Failure::Usage(format!("--build-secret {}: the variable {name} is not set", secret.id))
        })?,
    };
    Ok((secret.id, Secret::new(value)))
}

fn read(path: &Path, max: usize) -> Result<String> {
    use std::io::Read as _;
    let what = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).map_err(|error| Failure::io(what(), error))?;
    let mut text = String::new();
    let read =
        file.take(max as u64 + 1).read_to_string(&mut text).map_err(|error| Failure::io(what(), error))?;
    if read > max {
        return Err(Failure::plain(Code::TooLarge, format!("{} is larger than {max} bytes", path.display())));
    }
    Ok(text)
}

/// The ignore file: the Dockerfile's own, else the context's.
fn ignore_text(context: &Path, dockerfile: &Path) -> Result<Option<String>> {
    let mut own = dockerfile.as_os_str().to_owned();
    own.push(".dockerignore");
    for path in [PathBuf::from(own), context.join(".dockerignore")] {
        match read(&path, DOCKERFILE_MAX_BYTES) {
            Ok(text) => return Ok(Some(text)),
            Err(Failure::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
}

fn directory_name(context: &Path) -> Result<String> {
    let real = context
        .canonicalize()
        .map_err(|error| Failure::io(format!("cannot read {}", context.display()), error))?;
    let name =
        real.file_name().unwrap_or_default().to_string_lossy().to_lowercase().replace(['_', '.', ' '], "-");
    if atoll_core::spec::recipe_name("name", &name).is_err() {
        return Err(Failure::Usage(format!("'{name}' is no name for a template: give one with -t")));
    }
    Ok(name)
}

async fn send_context(
    client: &Client,
    printer: Printer,
    build: &str,
    context: PathBuf,
    ignore: Ignore,
) -> Result<()> {
    let upload = Upload::context(printer, context, ignore);
    let (content, bar, source) = upload.split();
    let sent = source.explain(client.put_build_context(build, content).await).await;
    bar.finish_and_clear();
    sent.map(drop)
}

/// How a build ended.
enum Ended {
    Made(String),
    Not(BuildFailure),
}

/// Shows the log from its start, until it ends, or what there is of it now.
async fn follow(client: &Client, printer: Printer, build: &str, wait: bool) -> Result<Ended> {
    let mut view = View::new(printer);
    let mut log = client.follow_build(build, wait, ResumePolicy::default());
    while let Some(event) = log.next().await? {
        view.show(&event)?;
        if let BuildEvent::End { template, failure, .. } = event {
            view.end();
            return Ok(match (template, failure) {
                (Some(template), _) => Ended::Made(template),
                (None, failure) => Ended::Not(failure.unwrap_or_else(no_end)),
            });
        }
    }
    view.end();
    // The end was recorded, but its line in the log got lost.
    let build = client.get_build(build).await?;
    Ok(match (build.template, build.failure) {
        (Some(template), _) => Ended::Made(template),
        (None, failure) => Ended::Not(failure.unwrap_or_else(no_end)),
    })
}

fn no_end() -> BuildFailure {
    Error::new(Code::Internal, "the log of the build has no end").into()
}

/// `atoll build …`
pub(super) async fn build(client: &Client, printer: Printer, command: BuildCommand) -> Result<()> {
    match command {
        BuildCommand::Ls => {
            let list = ListBuilds { limit: Some(PAGE_MAX_COUNT), ..ListBuilds::default() };
            let list: BuildList = client.list_builds(&list).await?;
            printer.result(&list, || {
                table(["ID", "NAME", "STATE", "TEMPLATE", "AGE", "TOOK", "WHY"], list.items.iter().map(row))
            })
        }
        BuildCommand::Show { build } => printer.document(&client.get_build(&build).await?),
        BuildCommand::Log { follow: wait, build } => follow(client, printer, &build, wait).await.map(drop),
        BuildCommand::Cancel { builds } => {
            let mut ended = Vec::new();
            for build in builds {
                ended.push(client.cancel_build(&build).await?);
            }
            printer.result(&ended, || {
                let lines = ended.iter().map(|build| format!("{} {}", build.id, build.state));
                lines.collect::<Vec<_>>().join("\n")
            })
        }
        BuildCommand::Cache(BuildCacheCommand::Ls) => {
            let list = client.build_cache().await?;
            printer.result(&list, || {
                table(
                    ["KEY", "STEP", "SIZE", "TOOK", "AGE", "USED", "TEMPLATE"],
                    list.items.iter().map(cache_row),
                )
            })
        }
        BuildCommand::Cache(BuildCacheCommand::Prune { keep }) => {
            let pruned = client.prune_build_cache(keep).await?;
            printer.result(&pruned, || {
                format!("removed {} steps, freed up to {}", pruned.removed, format_bytes(pruned.freed_bytes))
            })
        }
    }
}

fn row(build: &Build) -> [String; 7] {
    let took = match (build.started_at_ms, build.ended_at_ms) {
        (Some(started), Some(ended)) => format_duration_ms(ended.saturating_sub(started)),
        _ => String::new(),
    };
    let why = build.failure.as_ref().filter(|_| build.state == BuildState::Failed);
    [
        build.id.clone(),
        build.name.clone(),
        build.state.to_string(),
        build.template.clone().unwrap_or_default(),
        age(build.created_at_ms),
        took,
        why.map(|failure| failure.code.to_string()).unwrap_or_default(),
    ]
}

fn cache_row(entry: &BuildCacheEntry) -> [String; 7] {
    [
        entry.key.chars().take(12).collect(),
        entry.step.chars().take(60).collect(),
        format_bytes(entry.size_bytes),
        format_duration_ms(entry.took_ms),
        age(entry.created_at_ms),
        format!("{} ago", age(entry.used_at_ms)),
        if entry.in_template { "yes" } else { "" }.to_owned(),
    ]
}
