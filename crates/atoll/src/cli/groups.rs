//! The help of the program itself: its commands in groups, by what somebody wants to do.
//!
//! `clap` lists subcommands in one column, which at sixty of them nobody reads. Each is in one group; a test sees to that.

use std::fmt::Write as _;

use clap::Command;

/// The groups and their commands, in the order in which they are shown.
const GROUPS: [(&str, &[&str]); 8] = [
    (
        "Run something",
        &["run", "create", "exec", "shell", "code", "cp", "logs", "attach", "ps", "kill", "ssh"],
    ),
    (
        "Look after sandboxes",
        &[
            "ls", "inspect", "update", "extend", "pause", "resume", "rm", "metrics", "top", "usage",
            "access", "lease",
        ],
    ),
    ("Go back, branch out", &["checkpoint", "checkpoints", "rollback", "undo", "diff", "fork", "snapshot"]),
    ("Agents inside, and agents with tools", &["agent", "service", "mcp"]),
    ("Reach what listens inside", &["port", "tunnel", "link", "ssh-key"]),
    ("What it may do, what it did", &["net", "policy", "secret", "trace"]),
    ("What sandboxes are made of", &["image", "registry", "template", "build", "pool", "volume"]),
    (
        "The server",
        &[
            "serve",
            "info",
            "doctor",
            "dashboard",
            "login",
            "logout",
            "project",
            "key",
            "ca",
            "setup",
            "node",
            "backup",
            "restore",
            "purge",
            "completions",
        ],
    ),
];

/// Has the program's help show its commands in groups.
pub(super) fn in_groups(program: Command) -> Command {
    let heading = *program.get_styles().get_header();
    let name = *program.get_styles().get_literal();
    let width = program.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or_default();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, commands) in GROUPS {
        // Writing to a string does not fail.
        let _ = writeln!(template, "\n{heading}{title}:{heading:#}");
        for command in commands.iter().filter_map(|command| program.find_subcommand(command)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let command = command.get_name();
            let _ = writeln!(template, "  {name}{command}{name:#}{:1$}  {about}", "", width - command.len());
        }
    }
    let _ = write!(
        template,
        "\n{heading}Options:{heading:#}\n{{options}}\n\nTo begin: 'sudo atoll serve', and then 'atoll run -- uname -a'. \
         'atoll COMMAND --help' says more.\n"
    );
    program.help_template(template)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    /// Columns of a terminal that nobody made wider.
    const COLUMNS: usize = 100;

    #[test]
    fn each_command_is_in_one_group_and_in_one_line() {
        let program = Cli::command();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, commands)| *commands).copied().collect();
        let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
        let shown: BTreeSet<&str> = shown.map(Command::get_name).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), shown);
        assert_eq!(listed.len(), shown.len(), "none is there twice");
        let help = in_groups(program).render_help().to_string();
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}
