//! Arguments that are wrong: what a user may mean who comes from another tool, or mistyped.

use clap::Command;
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
    ("stats", "atoll top', 'atoll metrics SANDBOX"),
    ("events", "atoll trace SANDBOX"),
    ("network", "atoll net"),
    ("commit", "atoll snapshot create SANDBOX"),
    ("save", "atoll snapshot export SNAPSHOT FILE"),
    ("push", "atoll snapshot push SNAPSHOT"),
    ("tag", "atoll snapshot tag SNAPSHOT NAME:TAG"),
    ("export", "atoll cp SANDBOX:/PATH -"),
    ("wait", "atoll attach SANDBOX EXEC"),
    ("rename", "atoll update SANDBOX --name NAME"),
    ("prune", "atoll image prune"),
    ("system", "atoll info', 'atoll doctor"),
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

/// Options of docker and other tools, with the commands to which they are given there (their last word, or all of them),
/// and what does that here.
const OPTIONS: &[(&str, &[&str], &str)] = &[
    ("-d", &["run"], "a sandbox that stays: 'atoll create', and then 'atoll exec -d SANDBOX CMD'"),
    ("--detach", &["run"], "a sandbox that stays: 'atoll create', and then 'atoll exec -d SANDBOX CMD'"),
    ("-p", &["run", "create"], PORTS),
    ("--publish", &["run", "create"], PORTS),
    ("--expose", &["run", "create"], PORTS),
    ("--network", &["run", "create"], NETWORK),
    ("--net", &["run", "create"], NETWORK),
    (
        "--dns",
        &["run", "create"],
        "names are looked up by the server: 'atoll serve --resolver', '--hosts-file'",
    ),
    ("--add-host", &["run", "create"], "names are looked up by the server: 'atoll serve --hosts-file'"),
    ("-m", &["run", "create", "update"], "write --memory SIZE"),
    ("--cpus", &["run", "create", "update"], "write --cpu CORES"),
    ("-c", &["run", "create"], "write --cpu CORES; a shell's -c stands after the command"),
    ("--entrypoint", &["run", "create"], "the command of 'atoll run' and 'atoll exec' is all that runs"),
    ("--mount", &["run", "create"], "write --volume VOLUME:/PATH; 'atoll volume create' makes one"),
    ("--gpus", &["run", "create"], "sandboxes have no graphics processors"),
    ("--privileged", &["run", "create", "exec"], "root inside is never root on the host"),
    ("--cap-add", &["run", "create"], "root inside is never root on the host"),
    (
        "--restart",
        &["run", "create"],
        "what should always run is a service: 'atoll service add', '--services'",
    ),
    ("--pull", &["run", "create"], "an image that is not here is pulled; 'atoll image pull' fetches it anew"),
    ("--gpu", &["run", "create"], "sandboxes have no graphics processors"),
    ("-r", &["cp"], "directories are copied with all that is in them"),
    ("-a", &["cp"], "directories are copied with all that is in them, modes and links too"),
    ("--recursive", &["cp"], "directories are copied with all that is in them"),
    ("--archive", &["cp"], "directories are copied with all that is in them, modes and links too"),
    (
        "-a",
        &["ps"],
        "'atoll ps SANDBOX' lists a sandbox's commands, ended ones too; 'atoll ls -a' lists sandboxes",
    ),
    ("-v", &["rm"], "a sandbox's disk goes with it, volumes stay"),
    ("-t", &["rm", "pause"], "nothing is waited for: processes are frozen, or end"),
    ("-f", &["ls"], "'--label' and '--state' choose"),
    ("--filter", &["ls"], "'--label' and '--state' choose"),
    ("--format", &["ls", "ps", "inspect"], "write --json, and read it with jq"),
    ("--no-stream", &["top"], "write --once"),
    ("-p", &["login"], "a key in the arguments is seen by all: set ATOLL_API_KEY, or pipe it in"),
    ("-u", &["login"], "for a registry of images: 'atoll registry login -u USER HOST'"),
    ("-q", &["pull"], "progress is drawn on terminals only: pipe it"),
    ("--tag", &["build"], "write -t NAME --tag TAG"),
    ("--name", &["snapshot create"], "write -t NAME or -t NAME:TAG"),
    ("--name", &["key create", "project create", "template create", "volume create", "secret set"], NAME),
];
const PORTS: &str = "no port need be published: 'atoll port url SANDBOX PORT' and 'atoll tunnel SANDBOX PORT' reach every one";
const NAME: &str = "the name stands by itself, without an option";
const NETWORK: &str = "what a sandbox may reach: --internet on, --allow DOMAIN, --allow @pypi";

/// Commands that take no words, or fewer, and what a user may mean who adds one.
const WORDS: &[(&str, &str)] = &[
    ("create", "'--name NAME' names it, '--image IMAGE' and '--template NAME' say what it is made of"),
    ("link", "write SANDBOX:/PATH as one word"),
    ("trace", "'atoll trace SANDBOX' shows what it did; 'atoll trace summary SANDBOX' counts it"),
    ("serve", "'--listen ADDR' and '--data-dir DIR' say where"),
];

/// Groups of commands about sandboxes, and which of them a user may mean who writes a sandbox at once, with what it does.
const OF_SANDBOXES: &[(&str, &str, &str)] = &[
    ("access", "show", "says who may use it"),
    ("lease", "show", "says who has it for itself; 'take' and 'release' change that"),
    ("net", "show", "shows its policy and connections"),
    ("port", "ls", "lists its ports; 'url' makes a link to one"),
    ("service", "ls", "lists its services"),
];

/// Arguments that are missing by what they are called, and what lists them.
const LISTS: &[(&str, &str)] = &[
    ("<SANDBOX>", "'atoll ls' lists sandboxes"),
    ("<SANDBOX>...", "'atoll ls' lists sandboxes"),
    ("<EXEC>", "'atoll ps SANDBOX' lists its commands; 'atoll rm SANDBOX' ends and deletes it"),
    (
        "--sandbox <SANDBOX>",
        "'atoll agent up RECIPE --name NAME' makes one with all that it needs; 'atoll agent recipes' lists recipes",
    ),
    ("<TO>", "'atoll checkpoints SANDBOX' and 'atoll snapshot ls' list what there is to go back to"),
    ("<VOLUME>", "'atoll volume ls' lists volumes"),
    ("<VOLUME>...", "'atoll volume ls' lists volumes"),
    ("<IMAGE>...", "'atoll image ls' lists images"),
    ("<TEMPLATE>", "'atoll template ls' lists templates"),
    ("<SNAPSHOT>", "'atoll snapshot ls' lists snapshots"),
    ("<SNAPSHOT>...", "'atoll snapshot ls' lists snapshots"),
    ("<AGENT>", "'atoll agent ls' lists agents"),
    ("<AGENT>...", "'atoll agent ls' lists agents"),
    ("<SERVICE>", "'atoll service ls SANDBOX' lists its services"),
    ("<PORT>", "'atoll port ls SANDBOX' lists those on which something listens"),
    ("<ACCESS>...", "'atoll port access SANDBOX' lists its links and public ports"),
    ("<KEY>", "'atoll key ls' lists keys"),
    ("<KEY>...", "'atoll key ls' lists keys"),
    ("<PROJECT>", "'atoll project ls' lists projects"),
    ("<NODE>", "'atoll node ls' lists nodes"),
];

/// Commands and options that are suggested at most.
const SIMILAR_MAX_COUNT: usize = 2;

/// A command or an option that there is not, with what may be meant; `None` when something else is wrong.
pub(super) fn unknown(error: &clap::Error) -> Option<Failure> {
    if error.kind() == ErrorKind::InvalidSubcommand {
        return unknown_command(error);
    }
    if error.kind() == ErrorKind::ArgumentConflict {
        // A word behind a sandbox, where a command could have stood before it.
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
        return unknown_word(word);
    }
    if error.kind() == ErrorKind::UnknownArgument { unknown_option(error) } else { None }
}

/// What lists the things of which one must be named, when it was not.
pub(super) fn missing(error: &clap::Error) -> Option<&'static str> {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let first = missing.first()?;
    LISTS.iter().find(|(name, _)| name == first).map(|(_, hint)| *hint)
}

fn unknown_option(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    if !given.starts_with('-') {
        return unknown_word(given);
    }
    let option = given.split('=').next().unwrap_or(given);
    let path = path(option);
    let program = program(&path);
    let hint = if let Some(hint) = habit(&path, option) {
        hint.to_owned()
    } else if let Some(ContextValue::String(similar)) = error.get(ContextKind::SuggestedArg) {
        format!("did you mean '{}'?", similar.split(' ').next().unwrap_or(similar))
    } else if takes_words(&path) {
        format!("'{program} --help' lists its options; a value that begins with '-' stands after '--'")
    } else {
        format!("'{program} --help' lists its options")
    };
    Some(Failure::Unknown { message: format!("'{program}' has no option '{option}'"), hint })
}

/// A word too many for a command of which it is known what may be meant.
fn unknown_word(word: &str) -> Option<Failure> {
    let path = path(word);
    let [command] = path.as_slice() else { return None };
    let (_, hint) = WORDS.iter().find(|(name, _)| name == command)?;
    let message =
        format!("'{}' does not take the word '{}'", program(&path), atoll_core::error::shorten(word));
    Some(Failure::Unknown { message, hint: (*hint).to_owned() })
}

/// What another tool's option is here, if it is one.
fn habit(path: &[String], option: &str) -> Option<&'static str> {
    let (command, whole) = (path.last()?, path.join(" "));
    let is = |(name, commands, _): &&(&str, &[&str], &str)| {
        *name == option && commands.iter().any(|said| *said == command.as_str() || *said == whole.as_str())
    };
    OPTIONS.iter().find(is).map(|(.., hint)| *hint)
}

/// Whether free words can follow, so that one may begin with a `-`.
fn takes_words(path: &[String]) -> bool {
    let program = Cli::program();
    let command = path.iter().try_fold(&program, |command, name| command.find_subcommand(name));
    command.is_some_and(|command| {
        command.get_positionals().any(|arg| ["text", "argv", "code"].contains(&arg.get_id().as_str()))
    })
}

fn program(path: &[String]) -> String {
    path.iter().fold("atoll".to_owned(), |program, command| format!("{program} {command}"))
}

fn unknown_command(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let path = path(word);
    let program = program(&path);
    let hint = if let Some(instead) = meant(&path, word) {
        format!("'{instead}' does that here")
    } else {
        let similar = similar(&path, error);
        match (similar.is_empty(), of_sandbox(&path, word)) {
            (false, _) => format!("did you mean {}?", similar.join(" or ")),
            (true, Some(hint)) => hint,
            (true, None) => format!("'{program} --help' lists what there is"),
        }
    };
    Some(Failure::Unknown { message: format!("there is no command '{program} {word}'"), hint })
}

fn meant(path: &[String], word: &str) -> Option<&'static str> {
    // `atoll build` looks at builds that there are; the command that begins one is `atoll template build`.
    if path == ["build"] {
        return Some("atoll template build DIR");
    }
    let habit = HABITS.iter().find(|(habit, _)| path.is_empty() && *habit == word);
    habit.map(|(_, instead)| *instead)
}

/// What to write where a sandbox may have been named in the place of a command.
fn of_sandbox(path: &[String], word: &str) -> Option<String> {
    let [group] = path else { return None };
    let (_, command, does) = OF_SANDBOXES.iter().find(|(name, ..)| name == group)?;
    let word = atoll_core::error::shorten(word);
    Some(format!("if '{word}' is a sandbox: 'atoll {group} {command} {word}' {does}"))
}

/// The commands that were said before the word that is none.
fn path(word: &str) -> Vec<String> {
    let (mut command, mut path): (Command, Vec<String>) = (Cli::program(), Vec::new());
    for said in std::env::args_os().skip(1) {
        let said = said.to_string_lossy();
        let is_word = said == word
            || (word.starts_with('-') && said.strip_prefix(word).is_some_and(|rest| rest.starts_with('=')));
        if is_word {
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
    let program = Cli::program();
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
    fn options_of_others_are_none_of_ours_and_what_is_said_instead_is_there() {
        let program = Cli::program();
        let commands = |name: &str| -> Vec<Command> {
            if let Some((group, name)) = name.split_once(' ') {
                let found = program.find_subcommand(group).and_then(|group| group.find_subcommand(name));
                return found.into_iter().cloned().collect();
            }
            let inner = program.get_subcommands().flat_map(Command::get_subcommands);
            program
                .get_subcommands()
                .chain(inner)
                .filter(|command| command.get_name() == name)
                .cloned()
                .collect()
        };
        for (option, names, hint) in OPTIONS {
            let (long, short) = (option.strip_prefix("--"), option.strip_prefix('-'));
            for name in *names {
                let there = commands(name);
                assert!(!there.is_empty(), "{name}");
                // `build` is two commands: one of them lacks it.
                let has = |command: &Command| {
                    command.get_arguments().any(|arg| match (long, short) {
                        (Some(long), _) => arg.get_long() == Some(long),
                        (None, Some(short)) => arg.get_short().map(String::from).as_deref() == Some(short),
                        (None, None) => true,
                    })
                };
                assert!(!there.iter().all(has), "{name} has {option}");
            }
            for quoted in hint.split('\'').filter(|quoted| quoted.starts_with("atoll ")) {
                let mut command = &program;
                for word in quoted.split(' ').skip(1).take_while(|word| word.starts_with(char::is_lowercase))
                {
                    command = command.find_subcommand(word).unwrap_or_else(|| panic!("{hint}: {word}"));
                }
            }
        }
        for (group, command, _) in OF_SANDBOXES {
            let group = program.find_subcommand(group).unwrap();
            let command = group.find_subcommand(command).unwrap();
            assert!(command.get_positionals().any(|arg| arg.get_id() == "sandbox"), "{group}: {command}");
        }
        for (_, hint) in LISTS {
            let line = hint.split('\'').nth(1).unwrap();
            let (command, sub) =
                line.strip_prefix("atoll ").unwrap().split_once(' ').unwrap_or((&line[6..], ""));
            let found = program.find_subcommand(command).unwrap_or_else(|| panic!("{hint}"));
            assert!(
                sub.is_empty()
                    || sub == "SANDBOX"
                    || sub.starts_with("up RECIPE")
                    || found.find_subcommand(sub.split(' ').next().unwrap()).is_some()
            );
        }
    }

    #[test]
    fn what_is_said_instead_is_there() {
        for (habit, instead) in HABITS {
            let program = Cli::program();
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
