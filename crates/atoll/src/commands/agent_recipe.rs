//! `atoll agent up RECIPE --name NAME`: from a recipe to an agent that can be talked to, in one command.
//!
//! Its steps are those that a user would take by hand (`template build`, `secret set`, `agent up --template`, `cp`),
//! and what is there already is not made again. When a step fails nothing is left but the template and the secret,
//! which the next try uses. When this program is killed before the project is there, the agent goes with its sandbox
//! within a minute.

use std::time::Duration;

use atoll_api::{Agent, CreateAgent, CreateBuild, Mkdir, PutSecret, UpdateSandbox};
use atoll_build::Ignore;
use atoll_client::Client;
use atoll_core::policy::{Action, DomainPattern, InjectRule, SecretScope};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};

use super::{build, copy};
use crate::cli::{EgressArgs, InjectArgs, Named, RecipeArgs, parse_secret};
use crate::config;
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};
use crate::recipes::{self, Recipe};
use crate::signals::Stops;
use crate::terminal;

/// How long an agent lives that is not completed, milliseconds: the program that made it was killed.
const HALF_MADE_MS: u64 = 60_000;
/// While its project is brought it is told to live on this often.
const LIVES_ON: Duration = Duration::from_secs(15);
/// Where an agent works when its recipe does not say.
const WORKDIR: &str = "/work/project";

/// `atoll agent recipes`: the recipes that the program carries, whether or not there is a server.
pub(super) fn list(printer: Printer) -> Result<()> {
    let entries = recipes::catalogue()?;
    let row = |entry: &recipes::Entry| {
        let key = entry.key.as_ref().map(|key| key.secret.clone()).unwrap_or_default();
        [entry.name.to_owned(), entry.about.clone(), entry.adapter.clone(), key]
    };
    printer.list(&entries, || table(["NAME", "WHAT", "SPEAKS", "KEY"], entries.iter().map(row)))
}

/// Makes what is missing; gives the agent. `create` has the options of the command line for the agent itself.
pub(super) async fn up(
    client: &Client,
    printer: Printer,
    recipe: &str,
    args: RecipeArgs,
    name: String,
    workdir: Option<String>,
    create: CreateAgent,
) -> Result<Agent> {
    let recipe = recipes::find(recipe)?;
    let rules = secrets(&recipe, &args.secret)?;
    absent(client, &name).await?;
    // Report a wrong project directory now, not after minutes of building.
    let local = workdir.map(std::path::PathBuf::from);
    if let Some(dir) = local.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(Failure::Usage(format!(
            "{} is no directory here: --workdir is what the sandbox gets a copy of",
            dir.display()
        )));
    }
    for rule in &rules {
        keep_secret(client, printer, rule).await?;
    }
    template(client, printer, &recipe, &args).await?;

    let inject = InjectArgs { secret: rules, ..InjectArgs::default() };
    let egress =
        EgressArgs { allow: args.allow, allow_cidr: args.allow_cidr, inject, ..EgressArgs::default() };
    let create = CreateAgent {
        name,
        template: Some(recipe.name.clone()),
        egress: egress.policy()?,
        // Only a complete agent stays: `furnish` lifts this limit at the end.
        ttl_ms: Some(HALF_MADE_MS),
        ..with(recipe.agent, create)
    };
    // From here on an agent is left when this ends in the middle.
    let mut stops = Stops::catch()?;
    let made = tokio::select! {
        made = client.create_agent(&create) => made?,
        stop = stops.next() => return Err(stop.failure()),
    };
    let furnished = tokio::select! {
        furnished = furnish(client, printer, &made, local, create.cwd, &recipe.name) => furnished,
        stop = stops.next() => Err(stop.failure()),
    };
    match furnished {
        Ok(()) => Ok(made),
        Err(failure) => {
            if let Err(error) = client.delete_agent(&made.id).await {
                let seconds = HALF_MADE_MS / 1000;
                printer.warn(&format!(
                    "{} could not be deleted, and goes in {seconds} seconds: {error}",
                    made.name
                ));
            }
            Err(failure)
        }
    }
}

/// Brings the project, and lets the agent stay.
async fn furnish(
    client: &Client,
    printer: Printer,
    agent: &Agent,
    local: Option<std::path::PathBuf>,
    place: Option<String>,
    template: &str,
) -> Result<()> {
    let sandbox = &agent.sandbox;
    let lives = |ttl_ms: Option<u64>| UpdateSandbox { ttl_ms: Some(ttl_ms), ..UpdateSandbox::default() };
    let bring = async {
        let path = place.unwrap_or_else(|| WORKDIR.to_owned());
        let made = Mkdir { path: path.clone(), parents: true, mode: None, user: None };
        client.make_directory(sandbox, &made).await?;
        if let Some(local) = local {
            copy::content(client, printer, &local, sandbox, &path).await?;
        }
        Ok(())
    };
    let mut bring = std::pin::pin!(bring);
    let mut brought: Result<()> = loop {
        tokio::select! {
            brought = &mut bring => break brought,
            () = tokio::time::sleep(LIVES_ON) => {
                client.update_sandbox(sandbox, &lives(Some(HALF_MADE_MS))).await?;
            }
        }
    };
    if brought.is_ok() {
        let ttl_ms = client.get_template(template, None).await?.ttl_ms;
        brought = client.update_sandbox(sandbox, &lives(ttl_ms)).await.map(drop).map_err(Into::into);
    }
    brought
}

/// The recipe's settings, with those of the command line over them.
fn with(recipe: CreateAgent, said: CreateAgent) -> CreateAgent {
    let mut env = recipe.env;
    env.extend(said.env);
    CreateAgent {
        env,
        user: said.user.or(recipe.user),
        profile: said.profile.or(recipe.profile),
        budget: said.budget.or(recipe.budget),
        session_budget: said.session_budget.or(recipe.session_budget),
        ..recipe
    }
}

async fn absent(client: &Client, name: &str) -> Result<()> {
    match client.get_agent(name).await {
        Ok(_) => Err(Failure::Plain(
            Error::new(Code::NameTaken, format!("there is an agent {name} already"))
                .hint(format!("talk to it with 'atoll agent attach {name}', or take another name")),
        )),
        Err(error) if error.code() == Some(Code::AgentNotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How the secrets are put into requests: those of the command line, or the key of the recipe's model.
fn secrets(recipe: &Recipe, said: &[String]) -> Result<Vec<InjectRule>> {
    let own = recipe.about.key.as_ref();
    let known = |name: &str| own.filter(|key| key.secret == name).map(recipes::ModelKey::option);
    let options: Vec<String> = match said {
        [] => own.map(recipes::ModelKey::option).into_iter().collect(),
        said => said
            .iter()
            .map(|text| match known(text) {
                Some(option) => Ok(option),
                None if text.contains('=') => Ok(text.clone()),
                None => Err(Failure::Usage(format!("say where it may go: --secret {text}=HOST"))),
            })
            .collect::<Result<_>>()?,
    };
    options
        .iter()
        .map(|option| {
            parse_secret(option).map_err(|error| Failure::Usage(format!("--secret {option}: {error}")))
        })
        .collect()
}

/// Gives the server a secret that it does not have: from the variable of its name, or asked for.
async fn keep_secret(client: &Client, printer: Printer, rule: &InjectRule) -> Result<()> {
    let name = &rule.name;
    match client.get_secret(None, name).await {
        Ok(_) => return Ok(()),
        Err(error) if error.code() == Some(Code::SecretNotFound) => {}
        Err(error) => return Err(error.into()),
    }
    let value = match config::variable(name)? {
        Some(value) => Secret::new(value),
        None => terminal::read_value(&format!("{name}: "))?,
    };
    let hosts: Vec<DomainPattern> = rule.hosts.clone();
    let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let scope = SecretScope { hosts, templates: Vec::new(), sandboxes: Vec::new(), keys: Vec::new() };
    let put = PutSecret { value: Some(value), scope: Some(scope), ..PutSecret::default() };
    client.put_secret(None, name, &put).await?;
    printer.note(&format!(
        "the server keeps {name}, which goes to {} alone and into no sandbox",
        names.join(", ")
    ));
    Ok(())
}

/// Builds the template of a recipe, if it is not there or is to be built anew.
async fn template(client: &Client, printer: Printer, recipe: &Recipe, args: &RecipeArgs) -> Result<()> {
    if !args.rebuild {
        match client.get_template(&recipe.name, None).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(Code::TemplateNotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let presets = recipe.about.allow.iter().map(|name| Named::Preset(Action::Allow, name.clone()));
    let egress = EgressArgs {
        allow: presets.chain(args.allow.iter().cloned()).collect(),
        allow_cidr: args.allow_cidr.clone(),
        ..EgressArgs::default()
    };
    let request = CreateBuild {
        name: recipe.name.clone(),
        dockerfile: Some(recipe.dockerfile.clone()),
        args: args.base.iter().map(|base| ("BASE".to_owned(), base.clone())).collect(),
        egress: egress.policy()?,
        services: recipe.services.clone(),
        ..CreateBuild::default()
    };
    build::made_in(client, printer, &request, recipe.context.clone(), Ignore::parse("")).await
}
