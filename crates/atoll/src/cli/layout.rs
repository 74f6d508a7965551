//! How the help of commands is laid out: long lists of options in groups, the same form for `-h` and `--help`.
//!
//! `clap` derives a list of options in the order of their definition. Sixty options in one list are read by nobody.

use clap::{Arg, ArgAction, Command};

/// Where the options stand that every command has.
const GLOBAL: &str = "Global options";

/// Groups of options, by the commands that have them. What is in none stands below "Options".
const GROUPS: [(&[&str], &str, &[&str]); 13] = [
    (
        &["run", "create", "mcp", "update", "build", "build-defaults"],
        "Limits and isolation",
        &["isolation", "cpu", "memory", "pids", "io_bytes", "io_operations", "disk"],
    ),
    (&["run", "create", "mcp", "update"], "Lifetime and budget", &["ttl", "idle_timeout"]),
    (
        &["run", "create", "mcp"],
        "Checkpoints, clusters, access",
        &["auto_checkpoints", "durability", "node_label", "visibility"],
    ),
    (
        &["build", "create", "run", "mcp"],
        "What it starts",
        &[
            "start_cmd",
            "start_image",
            "services",
            "restart",
            "ready_cmd",
            "ready_port",
            "ready_timeout",
            "verify",
        ],
    ),
    (
        &["add"],
        "Readiness and health",
        &[
            "ready_port",
            "ready_path",
            "ready_command",
            "ready_timeout",
            "health_port",
            "health_path",
            "health_command",
            "health_interval",
            "health_failures",
        ],
    ),
    (
        &["serve"],
        "Addresses and TLS",
        &[
            "host",
            "domain",
            "public_url",
            "tls",
            "tls_cert",
            "tls_key",
            "acme",
            "acme_agree_tos",
            "acme_email",
            "acme_directory",
            "acme_ca",
            "acme_http_listen",
            "acme_dns_hook",
            "acme_dns_wait",
            "acme_eab_kid",
            "acme_eab_key_file",
            "no_ssh",
            "no_dashboard",
        ],
    ),
    (
        &["serve"],
        "Sandboxes",
        &[
            "sandboxes_max",
            "ready",
            "default_image",
            "default_isolation",
            "visibility",
            "reclaim_below",
            "pool",
            "pool_demand",
            "pool_memory",
            "microvm_dir",
            "qemu",
            "runsc",
        ],
    ),
    (
        &["serve"],
        "Their network",
        &[
            "default_egress",
            "egress_proxy",
            "resolver",
            "hosts_file",
            "closed_cidr",
            "registry_allow",
            "upstream_ca",
        ],
    ),
    (
        &["serve"],
        "Storage",
        &[
            "database",
            "storage_size",
            "logs_size",
            "images_size",
            "objects",
            "objects_endpoint",
            "objects_region",
            "vault_key_command",
        ],
    ),
    (&["serve"], "Flight recorder", &["trace", "trace_keep", "trace_size"]),
    (
        &["serve"],
        "People who log in",
        &[
            "oidc_issuer",
            "oidc_client_id",
            "oidc_client_secret_file",
            "oidc_allow",
            "oidc_scope",
            "oidc_name",
            "oidc_login",
        ],
    ),
    (&["serve"], "Several servers", &["node_name", "advertise", "node_label", "node_lease"]),
    (&["serve"], "Log and metrics", &["log", "log_format", "otlp_endpoint", "metrics_public"]),
];

/// Has every command show its options in groups, with what all commands have at the end.
pub(super) fn laid_out(program: Command) -> Command {
    let help = Arg::new("help").short('h').long("help").help("Print help").action(ArgAction::Help);
    let version = Arg::new("version").short('V').long("version").help("Print version");
    let version = version.action(ArgAction::Version);
    let global = |arg: Arg| arg.global(true).help_heading(GLOBAL);
    grouped(program.arg(global(help)).arg(global(version)))
}

fn grouped(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let group = |arg: Arg| {
        let of = |(commands, _, args): &&(&[&str], &str, &[&str])| {
            commands.contains(&name.as_str()) && args.contains(&arg.get_id().as_str())
        };
        match GROUPS.iter().find(of) {
            Some((_, heading, _)) if arg.get_help_heading().is_none() => arg.help_heading(*heading),
            Some(_) | None => arg,
        }
    };
    command.mut_args(group).mut_subcommands(grouped)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn every(command: &Command, path: &str, check: &mut impl FnMut(&Command, &str)) {
        check(command, path);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            every(sub, &format!("{path} {}", sub.get_name()), check);
        }
    }

    #[test]
    fn what_is_put_into_a_group_is_there() {
        let program = Cli::command();
        let mut there = std::collections::BTreeSet::new();
        every(&program, "atoll", &mut |command, _| {
            there.extend(
                command.get_arguments().map(|arg| (command.get_name().to_owned(), arg.get_id().to_string())),
            );
        });
        for (commands, heading, args) in GROUPS {
            for arg in args {
                let known = commands
                    .iter()
                    .any(|command| there.contains(&((*command).to_owned(), (*arg).to_owned())));
                assert!(known, "{heading}: {arg}");
            }
        }
    }

    /// What the program shows when it is asked for help in this way.
    fn help(path: &str, flag: &str) -> String {
        let words = path.split(' ').chain([flag]);
        Cli::program().try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn help_is_one_text_in_one_form() {
        every(&Cli::program(), "atoll", &mut |command, path| {
            assert_eq!(help(path, "-h"), help(path, "--help"), "{path}: two texts are one too many");
            let options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
            let ungrouped = options.filter(|arg| arg.get_help_heading().is_none()).count();
            assert!(ungrouped <= 18, "{path}: {ungrouped} options in one list");
        });
    }

    #[test]
    fn options_say_the_same_things_in_the_same_words() {
        every(&Cli::program(), "atoll", &mut |command, path| {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let what = format!("{path} {}: {help}", arg.get_id());
                assert!(!help.is_empty(), "{what}");
                let begins = help.starts_with(|c: char| c.is_uppercase() || "-@".contains(c));
                assert!(begins || help.starts_with("gVisor"), "{what}");
                assert!(!help.ends_with('.'), "{what}");
                assert!(
                    !help.contains("when absent") && !help.contains("(the default)"),
                    "write [default: …]: {what}"
                );
                let repeats = matches!(arg.get_action(), ArgAction::Append) && !arg.is_positional();
                assert_eq!(help.contains("(repeatable)"), repeats, "{what}");
            }
        });
    }
}
