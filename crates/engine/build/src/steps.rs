//! The step list: the second way to say what a build does, for programs. One stage, values as they stand.

use atoll_core::build::{CommandText, Step};
use atoll_core::limits::{BUILD_INSTRUCTIONS_MAX_COUNT, DOCKERFILE_MAX_BYTES};
use atoll_core::{Code, Error, Result};

use crate::parse::{mode, shown};
use crate::place::Place;
use crate::recipe::{Action, Command, Copy, Instruction, Recipe, Source, Stage};

/// Makes a recipe of a step list.
///
/// # Errors
/// [`Code::BuildFileInvalid`] or [`Code::TooLarge`], with the step's number.
pub fn from_steps(steps: &[Step]) -> Result<Recipe> {
    if steps.len() > BUILD_INSTRUCTIONS_MAX_COUNT {
        let message = format!("there are more than {BUILD_INSTRUCTIONS_MAX_COUNT} steps");
        return Err(Error::new(Code::TooLarge, message));
    }
    let Some((Step::From(image), rest)) = steps.split_first() else {
        let place = Place::Step(1);
        return Err(place
            .invalid("the first step is not 'from'")
            .hint("begin with {\"from\": \"host\"} or an image"));
    };
    let mut instructions = Vec::new();
    let mut bytes = 0;
    for (index, step) in rest.iter().enumerate() {
        let place = Place::Step(u32::try_from(index + 2).unwrap_or(u32::MAX));
        let instruction = instruction(place, step)?;
        bytes += format!("{:?}", instruction.action).len();
        if bytes > DOCKERFILE_MAX_BYTES {
            return Err(place.error(Code::TooLarge, "all steps together are larger than 512 KiB"));
        }
        instructions.push(instruction);
    }
    let stage =
        Stage { place: Place::Step(1), name: None, base: image.clone(), platform: None, instructions };
    Ok(Recipe { escape: '\\', variables: false, args: Vec::new(), stages: vec![stage], notes: Vec::new() })
}

fn instruction(place: Place, step: &Step) -> Result<Instruction> {
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
    };
    let listed = |pairs: &[(String, String)]| {
        pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let (action, text) = match step {
        Step::From(_) => return Err(place.invalid("'from' stands only first")),
        Step::Run(text) => (Action::Run(command(place, text)?, Vec::new()), format!("RUN {}", words(text))),
        Step::Copy(copy) => {
            if copy.sources.is_empty() {
                return Err(place.invalid("'copy' has no sources"));
            }
            let text = format!("COPY {} {}", copy.sources.join(" "), copy.destination);
            let action = Copy {
                sources: copy.sources.iter().cloned().map(Source::Path).collect(),
                destination: copy.destination.clone(),
                from: copy.from.clone(),
                chown: copy.user.clone(),
                chmod: copy.mode.as_deref().map(|text| mode(place, text)).transpose()?,
                checksum: None,
                add: false,
                keep_links: copy.keep_links,
            };
            (Action::Copy(action), text)
        }
        Step::Env(map) => (Action::Env(pairs(map)), format!("ENV {}", listed(&pairs(map)))),
        Step::Label(map) => (Action::Label(pairs(map)), format!("LABEL {}", listed(&pairs(map)))),
        Step::Workdir(dir) => (Action::Workdir(dir.clone()), format!("WORKDIR {dir}")),
        Step::User(user) => (Action::User(user.clone()), format!("USER {user}")),
        Step::Cmd(text) => (Action::Cmd(command(place, text)?), format!("CMD {}", words(text))),
        Step::Entrypoint(text) => {
            (Action::Entrypoint(command(place, text)?), format!("ENTRYPOINT {}", words(text)))
        }
    };
    Ok(Instruction { place, text: shown(&text), action })
}

fn command(place: Place, text: &CommandText) -> Result<Command> {
    match text {
        CommandText::Shell(line) if !line.is_empty() => Ok(Command::Shell(line.clone())),
        CommandText::Argv(argv) if argv.first().is_some_and(|program| !program.is_empty()) => {
            Ok(Command::Argv(argv.clone()))
        }
        CommandText::Shell(_) | CommandText::Argv(_) => Err(place.invalid("the command is empty")),
    }
}

fn words(text: &CommandText) -> String {
    match text {
        CommandText::Shell(line) => line.clone(),
        CommandText::Argv(argv) => argv.join(" "),
    }
}
