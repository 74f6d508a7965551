//! The server's words for people: its errors name the fields of requests, with sizes in bytes and times in milliseconds. A user of the
//! command line wrote options, with units.

use crate::cli;
use crate::units::{format_bytes, format_cpu_millis, format_duration_ms};

/// What the number of a field is.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Bytes,
    Ms,
    Millis,
    Plain,
}

/// Fields of requests, and the options that set them.
const FIELDS: [(&str, &str, Unit); 30] = [
    ("resources.cpu_millis", "cpu", Unit::Millis),
    ("resources.memory_bytes", "memory", Unit::Bytes),
    ("resources.disk_bytes", "disk", Unit::Bytes),
    ("resources.pids", "pids", Unit::Plain),
    ("resources.io_bytes_per_second", "io-bytes", Unit::Bytes),
    ("resources.io_operations_per_second", "io-operations", Unit::Plain),
    ("budget.cpu_ms", "budget-cpu", Unit::Ms),
    ("budget.running_ms", "budget-running", Unit::Ms),
    ("budget.egress_bytes", "budget-egress", Unit::Bytes),
    ("ttl_ms", "ttl", Unit::Ms),
    ("timeout_ms", "timeout", Unit::Ms),
    ("idle_timeout_ms", "idle-timeout", Unit::Ms),
    ("idle_freeze_ms", "idle-freeze", Unit::Ms),
    ("hibernate_after_ms", "hibernate-after", Unit::Ms),
    ("delete_paused_after_ms", "delete-paused-after", Unit::Ms),
    ("on_idle", "on-idle", Unit::Plain),
    ("size_bytes", "size", Unit::Bytes),
    ("auto_checkpoints.keep", "auto-checkpoints", Unit::Plain),
    ("auto_checkpoints", "auto-checkpoints", Unit::Plain),
    ("node_labels", "node-label", Unit::Plain),
    ("labels", "label", Unit::Plain),
    ("from_memory", "from-memory", Unit::Plain),
    ("memory", "from-memory", Unit::Plain),
    ("cwd", "workdir", Unit::Plain),
    ("workdir", "workdir", Unit::Plain),
    ("env", "env", Unit::Plain),
    ("user", "user", Unit::Plain),
    ("name", "name", Unit::Plain),
    ("volumes", "volume", Unit::Plain),
    ("snapshot", "snapshot", Unit::Plain),
];

/// An error or hint in the words of the command that was called.
pub(crate) fn for_people(text: &str) -> String {
    // Most messages name no field: then nobody need know which options the command has.
    let named = |(field, ..): &(&str, &str, Unit)| text.contains(field);
    if FIELDS.iter().any(named) { translated(text, cli::called_has) } else { text.to_owned() }
}

/// `has` says whether the command has an option.
fn translated(text: &str, has: impl Fn(&str) -> bool) -> String {
    // A field with a dot can be nothing else, also where a command meets the limit that another one set.
    let known = || FIELDS.iter().filter(|(field, option, _)| field.contains('.') || has(option));
    let of_field = |text: &str| {
        let (begin, rest) = text.split_once(": ")?;
        let within = |field: &str| {
            begin == field || begin.strip_prefix(field).is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let (field, option, unit) = known().find(|(field, ..)| within(field))?;
        let inner = begin.strip_prefix(field)?.trim_start_matches('.');
        let inner = if inner.is_empty() { String::new() } else { format!(" {inner}") };
        Some(format!("--{option}{inner}: {}", with_units(rest, *unit)))
    };
    let mut text = of_field(text).unwrap_or_else(|| text.to_owned());
    for (field, option, _) in known() {
        text = text.replace(&format!("leave '{field}' out"), &format!("leave --{option} out"));
    }
    text
}

/// The numbers of a text, as people write them.
fn with_units(text: &str, unit: Unit) -> String {
    let one = |word: &str| {
        let digits = word.trim_end_matches([',', ';', '.']);
        let Ok(number) = digits.parse::<u64>() else { return word.to_owned() };
        let shown = match unit {
            Unit::Bytes => format_bytes(number),
            Unit::Ms => format_duration_ms(number),
            Unit::Millis => u32::try_from(number).map_or_else(|_large| digits.to_owned(), format_cpu_millis),
            Unit::Plain => digits.to_owned(),
        };
        word.replacen(digits, &shown, 1)
    };
    text.split(' ').map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> String {
        translated(text, |_| true)
    }

    #[test]
    fn fields_are_options_and_numbers_have_units() {
        assert_eq!(
            all("resources.memory_bytes: 1 is not between 16777216 and 17592186044416"),
            "--memory: 1 B is not between 16 MiB and 16 TiB"
        );
        assert_eq!(
            all("resources.cpu_millis: 0 is not between 10 and 1024000"),
            "--cpu: 0 is not between 0.01 and 1024"
        );
        assert_eq!(all("budget.cpu_ms: 105 of 1 are used"), "--budget-cpu: 105ms of 1ms are used");
        assert_eq!(all("ttl_ms: 5 is not between 1000 and 60000"), "--ttl: 5ms is not between 1s and 1m");
        assert_eq!(all("labels.a b: not a label key"), "--label a b: not a label key");
        assert_eq!(
            all("create the directory first, or leave 'cwd' out"),
            "create the directory first, or leave --workdir out"
        );
        assert_eq!(all("volumes[0]: no 7 here"), "--volume [0]: no 7 here");
        for same in ["no sandbox 'dev'", "no sandbox 'user'", "the name: is taken", "environment: 7"] {
            assert_eq!(all(same), same);
        }
    }

    #[test]
    fn a_command_without_the_option_says_what_the_server_said() {
        let text = "name: 'A b' is not a name";
        assert_eq!(translated(text, |option| option != "name"), text);
        assert_eq!(translated(text, |_| true), "--name: 'A b' is not a name");
    }
}
