//! Unknown commands: what a user may mean who comes from another tool, or mistyped.

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;
use crate::failure::Failure;

/// Words of docker, podman, kubectl and the tools of hosted sandboxes, and what does that here.
const HABITS: &[(&str, &str)] = &[
    ("images", "atoll image ls"),
    ("pull", "atoll image pull REFERENCE"),
    ("load", "atoll image load FILE"),
    ("import", "atoll image import FILE NAME"),
    ("rmi", "atoll image rm IMAGE"),
    ("container", "atoll ls', 'atoll create', 'atoll rm"),
    ("containers", "atoll ls"),
    ("sandbox", "atoll ls', 'atoll create', 'atoll rm"),
    ("sandboxes", "atoll ls"),
    ("list", "atoll ls"),
    ("new", "atoll create"),
    ("spawn", "atoll create"),
    ("launch", "atoll create"),
    ("delete", "atoll rm SANDBOX"),
    ("remove", "atoll rm SANDBOX"),
    ("destroy", "atoll rm SANDBOX"),
    ("terminate", "atoll rm SANDBOX"),
    ("stop", "atoll pause SANDBOX"),
    ("hibernate", "atoll pause SANDBOX"),
    ("start", "atoll resume SANDBOX"),
    ("unpause", "atoll resume SANDBOX"),
    ("connect", "atoll shell SANDBOX"),
    ("enter", "atoll shell SANDBOX"),
    ("sh", "atoll shell SANDBOX"),
    ("describe", "atoll inspect SANDBOX"),
    ("get", "atoll inspect SANDBOX"),
    ("show", "atoll inspect SANDBOX"),
    ("stats", "atoll metrics SANDBOX"),
    ("events", "atoll trace SANDBOX"),
    ("network", "atoll net"),
    ("commit", "atoll snapshot create SANDBOX"),
    ("save", "atoll snapshot export SNAPSHOT FILE"),
    ("push", "atoll snapshot push SNAPSHOT"),
    ("clone", "atoll fork SANDBOX"),
    ("branch", "atoll fork SANDBOX"),
    ("restart", "atoll service restart SANDBOX SERVICE"),
    ("forward", "atoll tunnel SANDBOX PORT"),
    ("port-forward", "atoll tunnel SANDBOX PORT"),
    ("ports", "atoll port ls SANDBOX"),
    ("expose", "atoll port publish SANDBOX PORT"),
    ("keys", "atoll key ls"),
    ("secrets", "atoll secret ls"),
    ("volumes", "atoll volume ls"),
    ("templates", "atoll template ls"),
    ("agents", "atoll agent ls"),
    ("snapshots", "atoll snapshot ls"),
    ("auth", "atoll login"),
    ("config", "atoll login"),
    ("ui", "atoll dashboard"),
    ("console", "atoll dashboard"),
    ("daemon", "atoll serve"),
    ("server", "atoll serve"),
    ("up", "atoll agent up"),
    ("version", "atoll --version"),
];

/// Commands that are suggested at most.
const SIMILAR_MAX_COUNT: usize = 2;

/// A command that there is not, with what may be meant; `None` when something else is wrong.
pub(super) fn unknown(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let path = path(word);
    let program = path.iter().fold("atoll".to_owned(), |program, command| format!("{program} {command}"));
    let hint = if let Some(instead) = meant(&path, word) {
        format!("'{instead}' does that here")
    } else {
        let similar = similar(&path, error);
        if similar.is_empty() {
            format!("'{program} --help' lists what there is")
        } else {
            format!("did you mean {}?", similar.join(" or "))
        }
    };
    Some(Failure::NoCommand { message: format!("there is no command '{program} {word}'"), hint })
}

fn meant(path: &[String], word: &str) -> Option<&'static str> {
    // `atoll build` looks at builds that there are; the command that begins one is `atoll template build`.
    if path == ["build"] {
        return Some("atoll template build DIR");
    }
    let habit = HABITS.iter().find(|(habit, _)| path.is_empty() && *habit == word);
    habit.map(|(_, instead)| *instead)
}

/// The commands that were said before the word that is none.
fn path(word: &str) -> Vec<String> {
    let (mut command, mut path) = (Cli::command(), Vec::new());
    for said in std::env::args_os().skip(1) {
        let said = said.to_string_lossy();
        if said == word {
            break;
        }
        if let Some(next) = command.find_subcommand(said.as_ref()).cloned() {
            path.push(next.get_name().to_owned());
            command = next;
        }
    }
    path
}

/// What clap finds similar, but for commands that only the program gives itself.
fn similar(path: &[String], error: &clap::Error) -> Vec<String> {
    let found = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    };
    let program = Cli::command();
    let parent = path.iter().try_fold(&program, |command, name| command.find_subcommand(name));
    let is_shown = |name: &String| {
        parent.and_then(|parent| parent.find_subcommand(name)).is_some_and(|command| !command.is_hide_set())
    };
    let said = |name| ["atoll"].into_iter().chain(path.iter().map(String::as_str)).chain([name]);
    // The most similar comes last.
    let names = found.iter().rev().filter(|name| is_shown(name)).take(SIMILAR_MAX_COUNT);
    names.map(|name| format!("'{}'", said(name.as_str()).collect::<Vec<_>>().join(" "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_instead_is_there() {
        for (habit, instead) in HABITS {
            let program = Cli::command();
            assert!(program.find_subcommand(habit).is_none(), "{habit} is a command");
            for line in instead.split("', '") {
                let mut command = &program;
                for word in line.split(' ').skip(1).take_while(|word| word.starts_with(char::is_lowercase)) {
                    command = command.find_subcommand(word).unwrap_or_else(|| panic!("{line}: {word}"));
                }
                assert!(line.starts_with("atoll "), "{line}");
            }
        }
    }
}
