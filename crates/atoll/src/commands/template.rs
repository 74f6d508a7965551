//! Templates.

use atoll_api::{CreateTemplate, Template, TemplateTag, TemplateTagList};
use atoll_client::Client;
use atoll_core::build::{CommandText, Ready};

use super::sandbox::limits;
use crate::cli::{TemplateArgs, TemplateCommand};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};

/// `atoll template …`
pub(super) async fn template(client: &Client, printer: Printer, command: TemplateCommand) -> Result<()> {
    match command {
        TemplateCommand::Build(args) => super::build::template_build(client, printer, *args).await,
        TemplateCommand::BuildDefaults(args) => super::defaults::build_defaults(client, printer, *args).await,
        TemplateCommand::Create(args) => {
            let template = client.create_template(&request(args)?).await?;
            printer.result(&template, || format!("{}:{}", template.name, template.version))
        }
        TemplateCommand::Ls { quiet } => {
            let list = client.list_templates().await?;
            let names = quiet.then(|| list.items.iter().map(|template| template.name.as_str()));
            printer.names_or(&list, names, || {
                table(["NAME", "VERSION", "IMAGE", "AGE"], list.items.iter().map(row))
            })
        }
        TemplateCommand::Show { template } => {
            // A text that is not a version is a tag: the server knows the tags.
            let (name, version) = split(&template).unwrap_or((&template, None));
            printer.document(&client.get_template(name, version).await?)
        }
        TemplateCommand::Tag { template, tags } => {
            let (name, version) = split(&template)?;
            let mut items = Vec::new();
            for tag in &tags {
                items.push(client.set_template_tag(name, tag, version).await?);
            }
            let list = TemplateTagList { items };
            printer.result(&list, || table(TAGS, list.items.iter().map(tag_row)))
        }
        TemplateCommand::Untag { template, tags } => {
            for tag in &tags {
                client.delete_template_tag(&template, tag).await?;
            }
            printer.removed(&tags)
        }
        TemplateCommand::Tags { template, tag } => {
            let list = match tag {
                Some(tag) => client.list_tag_assignments(&template, &tag).await?,
                None => client.list_template_tags(&template).await?,
            };
            printer.result(&list, || table(TAGS, list.items.iter().map(tag_row)))
        }
        TemplateCommand::Rm { template } => {
            let (name, version) = split(&template)?;
            client.delete_template(name, version).await?;
            printer.removed(&[template])
        }
    }
}

const TAGS: [&str; 3] = ["TAG", "VERSION", "AGE"];

fn tag_row(tag: &TemplateTag) -> [String; 3] {
    [tag.tag.clone(), tag.version.to_string(), age(tag.set_at_ms)]
}

fn row(template: &Template) -> [String; 4] {
    [template.name.clone(), template.version.to_string(), template.image.clone(), age(template.created_at_ms)]
}

fn request(args: TemplateArgs) -> Result<CreateTemplate> {
    Ok(CreateTemplate {
        name: args.name,
        image: args.image.unwrap_or_default(),
        snapshot: args.snapshot,
        isolation: args.isolation,
        resources: limits(&args.limits, args.disk),
        env: args.env.into_iter().collect(),
        labels: args.label.into_iter().collect(),
        user: args.user,
        workdir: args.workdir,
        ttl_ms: args.ttl,
        idle_timeout_ms: args.idle_timeout,
        pool: args.pool,
        egress: args.egress.policy()?,
        execution: args.execution.policy()?,
        profiles: args.profiles.profiles()?,
        services: args.services.services()?,
        start: args.start_cmd.map(CommandText::Shell),
        ready: ready(args.ready_cmd, args.ready_port, args.ready_timeout),
        restart: args.restart,
        memory: args.from_memory,
    })
}

/// `name` or `name:version`.
fn split(text: &str) -> Result<(&str, Option<u32>)> {
    let Some((name, version)) = text.split_once(':') else { return Ok((text, None)) };
    let version =
        version.parse().map_err(|_error| Failure::Usage(format!("'{text}' is not NAME or NAME:VERSION")))?;
    Ok((name, Some(version)))
}

/// When a sandbox is ready, if the arguments say so.
pub(super) fn ready(command: Option<String>, port: Option<u16>, timeout_ms: Option<u64>) -> Option<Ready> {
    (command.is_some() || port.is_some()).then(|| Ready {
        command: command.map(CommandText::Shell),
        port,
        timeout_ms,
        interval_ms: None,
    })
}
