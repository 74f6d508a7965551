//! Examples in the help of commands: what somebody types who does this for the first time.

use std::fmt::Write as _;

use clap::Command;

/// What a user of several commands should know of how they end.
const EXIT_CODES: &str = "Exit code: the command's own; 126 and 127 when it cannot run or is not there, 125 when Atoll fails, 2 for wrong arguments.";

/// Commands, and what is typed with them: the line, and what it does where that needs words.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("atoll run -- uname -a", "in the host's own /usr: nothing to download"),
            ("atoll run --image python:3.12-slim -it -- python3", "an image that is not here is pulled"),
            ("atoll run --allow @pypi --memory 1GiB -- pip download six", ""),
            ("cat data.csv | atoll run -i -- wc -l", ""),
        ],
    ),
    (
        "create",
        &[
            ("atoll create --name dev", ""),
            ("atoll create --name job --image debian:bookworm --cpu 2 --memory 4GiB --ttl 2h", ""),
            ("atoll create --name web --allow @npm --allow api.example.com -e NODE_ENV=test", ""),
            (
                "atoll create --name agent --secret OPENAI_API_KEY=api.openai.com",
                "which it uses and never sees",
            ),
        ],
    ),
    (
        "exec",
        &[
            ("atoll exec dev -- sh -c 'echo hello > /tmp/f'", ""),
            ("atoll exec -it dev bash", ""),
            ("atoll exec -d dev make test", "prints the command's id; 'atoll logs -f dev' shows its output"),
            ("tar c . | atoll exec -i dev tar x -C /work", ""),
        ],
    ),
    ("shell", &[("atoll shell dev", ""), ("atoll shell -u root -w /srv dev", "")]),
    (
        "code",
        &[
            ("atoll code dev 'import math; math.pi'", "a last expression is shown"),
            ("atoll code dev -f plot.py --save ./out", "pictures become files"),
        ],
    ),
    (
        "cp",
        &[
            ("atoll cp ./project dev:/home/user/", "directories with all that is in them"),
            ("atoll cp dev:/home/user/result.csv .", ""),
            ("atoll cp dev:/var/log - | tar t", ""),
        ],
    ),
    (
        "logs",
        &[
            ("atoll logs -f dev", "of the newest command, from its beginning, then live"),
            ("atoll logs --tail 20 dev ex06h1th96xvfzv35v3fe1", ""),
        ],
    ),
    ("attach", &[("atoll attach dev ex06h1th96xvfzv35v3fe1", "")]),
    ("ps", &[("atoll ps dev", "")]),
    (
        "kill",
        &[
            ("atoll kill dev ex06h1th96xvfzv35v3fe1", "with all that it started"),
            ("atoll kill -s INT dev ex06h1th96xvfzv35v3fe1", ""),
        ],
    ),
    (
        "ssh",
        &[
            ("atoll ssh dev", ""),
            ("atoll ssh --print-config dev >> ~/.ssh/config", "then: scp, rsync, editors"),
        ],
    ),
    (
        "ls",
        &[
            ("atoll ls", ""),
            ("atoll ls -l team=blue --json", ""),
            ("atoll rm $(atoll ls -q --state paused)", ""),
        ],
    ),
    ("inspect", &[("atoll inspect dev", ""), ("atoll inspect dev ex06h1th96xvfzv35v3fe1", "")]),
    (
        "update",
        &[
            ("atoll update dev --memory 8GiB --ttl 1h", ""),
            ("atoll update dev --budget-egress 1GiB", ""),
            ("atoll net allow dev example.com", "one rule more; --allow here replaces the whole policy"),
        ],
    ),
    ("extend", &[("atoll extend dev 2h", "")]),
    ("pause", &[("atoll pause dev", "the next use wakes it"), ("atoll pause --mode memory dev", "")]),
    ("resume", &[("atoll resume dev", "")]),
    ("rm", &[("atoll rm dev", ""), ("atoll rm --all -l team=blue", "")]),
    ("metrics", &[("atoll metrics dev", "")]),
    ("top", &[("atoll top", ""), ("atoll top --sort memory --once", "")]),
    ("usage", &[("atoll usage --since 24h", ""), ("atoll usage --by key", "")]),
    ("access", &[("atoll access grant dev ky06h1th1p06dq46nb5dan exec", "")]),
    ("lease", &[("atoll lease take dev --ttl 10m --holder ann", ""), ("atoll lease release dev", "")]),
    ("checkpoint", &[("atoll checkpoint dev -c 'tests pass'", "")]),
    ("checkpoints", &[("atoll checkpoints dev", ""), ("atoll checkpoints dev --rm 1", "")]),
    ("rollback", &[("atoll rollback dev 1", "")]),
    ("undo", &[("atoll create --name dev --auto-checkpoints 10", ""), ("atoll undo dev", "")]),
    ("diff", &[("atoll diff dev", "what changed since its image"), ("atoll diff dev 1 2 --text", "")]),
    (
        "fork",
        &[
            ("atoll fork dev --name try", ""),
            ("atoll fork dev -n 3 --at 1", "three that go on from checkpoint 1"),
        ],
    ),
    (
        "snapshot",
        &[
            ("atoll snapshot create dev -t base:clean", ""),
            ("atoll create --snapshot base:clean", ""),
            ("atoll snapshot export base:clean base.tar", ""),
        ],
    ),
    (
        "agent",
        &[
            (
                "atoll agent up opencode --name fix-tests --workdir ./project",
                "all that it needs, from a recipe",
            ),
            ("atoll agent send fix-tests 'make the tests pass'", ""),
            ("atoll agent attach fix-tests", ""),
        ],
    ),
    (
        "service",
        &[
            ("atoll service add dev web --ready-port 8000 -- python3 -m http.server 8000", ""),
            ("atoll service logs -f dev web", ""),
        ],
    ),
    (
        "mcp",
        &[
            ("claude mcp add sandboxes -- atoll mcp --image python:3.12-slim", ""),
            ("atoll mcp --listen 127.0.0.1:8080", "for clients that speak HTTP"),
        ],
    ),
    (
        "port",
        &[
            ("atoll port ls dev", ""),
            ("atoll port url dev 8000 --ttl 1h", "a link to pass on"),
            ("atoll port open dev 8000", ""),
        ],
    ),
    (
        "tunnel",
        &[
            ("atoll tunnel dev 8000", "port 8000 of the sandbox on 127.0.0.1:8000 here"),
            ("atoll tunnel dev 9000:8000", "on 127.0.0.1:9000 here"),
            ("atoll tunnel dev -r 5432", "this machine's port 5432 inside, on 127.0.0.1:5432"),
        ],
    ),
    ("link", &[("atoll link dev:/home/user/report.pdf --ttl 1d", "")]),
    ("ssh-key", &[("atoll ssh-key add ~/.ssh/id_ed25519.pub", "")]),
    (
        "net",
        &[
            ("atoll net denied dev", "what was refused, and what would allow it"),
            ("atoll net allow dev api.example.com @pypi", ""),
            ("atoll net allow dev 10.1.2.3:5432", "private addresses only by address"),
        ],
    ),
    (
        "policy",
        &[
            ("atoll policy learn dev -o policy.json", ""),
            ("atoll policy replay policy.json --trace dev", ""),
            ("atoll create --egress policy.json --execution policy.json", ""),
        ],
    ),
    (
        "secret",
        &[
            ("atoll secret set OPENAI_API_KEY --host api.openai.com", "asks for the value"),
            ("atoll create --secret OPENAI_API_KEY=api.openai.com", ""),
            ("atoll secret audit OPENAI_API_KEY", ""),
        ],
    ),
    (
        "trace",
        &[
            ("atoll trace dev -f", ""),
            ("atoll trace dev --kind policy --since 1h", ""),
            ("atoll trace tree dev", ""),
            ("atoll trace verify dev", ""),
        ],
    ),
    (
        "image",
        &[
            ("atoll image pull python:3.12-slim", "from docker.io, as no registry is named"),
            ("docker save my-image | atoll image load -", ""),
            ("atoll image import ./rootfs.tar base", ""),
        ],
    ),
    (
        "registry",
        &[
            ("atoll registry login ghcr.io -u me", ""),
            ("atoll registry login ghcr.io -u me --password-stdin < token", ""),
        ],
    ),
    (
        "template",
        &[
            (
                "atoll template build ./app -t app --allow @debian --allow @pypi",
                "steps reach what is allowed",
            ),
            ("atoll run --template app -- python3 main.py", ""),
            ("atoll template tag app:3 live", ""),
        ],
    ),
    (
        "template build",
        &[
            ("atoll template build ./app", "app:1, with the name of the directory"),
            ("atoll template build ./app -t app --allow @debian --allow @pypi", ""),
            ("atoll template build . -t web --start-cmd 'npm start' --ready-port 3000", ""),
            ("atoll template build . -t ml --build-arg VERSION=3 --isolation gvisor", ""),
        ],
    ),
    ("build", &[("atoll build ls", ""), ("atoll build log bu06h1th96xvfzv35v3fe1", "")]),
    (
        "pool",
        &[("atoll pool set --template app 2 10", "two always, up to ten by demand"), ("atoll pool ls", "")],
    ),
    (
        "volume",
        &[
            ("atoll volume create data --size 20GiB", ""),
            ("atoll create -v data:/data", ""),
            ("atoll volume cp ./model.bin data:/model.bin", ""),
        ],
    ),
    (
        "serve",
        &[
            ("sudo atoll serve", "listens on 127.0.0.1:4600"),
            ("sudo atoll serve --listen 0.0.0.0:4600 --domain atoll.example.com --acme --acme-agree-tos", ""),
            ("sudo atoll serve --ephemeral --listen 127.0.0.1:0 --ready-json", "for tests"),
        ],
    ),
    ("info", &[("atoll info", "")]),
    (
        "doctor",
        &[
            ("sudo atoll doctor", "before there is a server"),
            ("atoll doctor", "asks the server, if one is configured"),
            ("atoll doctor --leaks", ""),
        ],
    ),
    ("dashboard", &[("atoll dashboard --open", "")]),
    (
        "login",
        &[
            ("atoll login https://atoll.example.com:4600", "asks for the key"),
            ("atoll login https://atoll.example.com --oidc", ""),
        ],
    ),
    ("logout", &[("atoll logout", "")]),
    ("project", &[("atoll project create blue --max-sandboxes 50 --max-memory 64GiB", "")]),
    (
        "key",
        &[
            ("atoll key create ci --scope manage --ttl 90d", ""),
            ("export E2B_API_KEY=$(atoll key create me --scope manage --for e2b)", ""),
        ],
    ),
    ("ca", &[("atoll ca > atoll-ca.pem", "")]),
    ("setup", &[("sudo atoll setup microvm", "")]),
    ("node", &[("atoll node ls", ""), ("atoll node drain host-2 --wait", "")]),
    ("backup", &[("sudo atoll backup atoll.backup", "")]),
    (
        "restore",
        &[
            ("atoll restore --verify atoll.backup", ""),
            ("sudo atoll restore --data-dir /var/lib/atoll atoll.backup", ""),
        ],
    ),
    ("purge", &[("sudo atoll purge --data-dir /var/lib/atoll", "")]),
    (
        "completions",
        &[
            ("source <(atoll completions bash)", "in ~/.bashrc"),
            ("source <(atoll completions zsh)", "in ~/.zshrc, after compinit"),
            ("atoll completions fish > ~/.config/fish/completions/atoll.fish", ""),
        ],
    ),
];

/// Commands whose exit code is that of a command in a sandbox.
const PASS_CODES_ON: [&str; 5] = ["run", "exec", "shell", "attach", "ssh"];

/// Has commands show examples at the end of their help.
pub(super) fn with_examples(program: Command) -> Command {
    let heading = *program.get_styles().get_header();
    EXAMPLES.iter().fold(program, |program, (path, lines)| {
        let width = lines
            .iter()
            .filter(|(_, what)| !what.is_empty())
            .map(|(line, _)| line.len())
            .max()
            .unwrap_or_default();
        let mut text = format!("{heading}Examples:{heading:#}");
        for (line, what) in *lines {
            let what = if what.is_empty() {
                String::new()
            } else {
                format!("{:1$}  # {what}", "", width - line.len())
            };
            // Writing to a string does not fail.
            let _ = write!(text, "\n  {line}{what}");
        }
        if PASS_CODES_ON.contains(path) {
            let _ = write!(text, "\n\n{EXIT_CODES}");
        }
        let words: Vec<&str> = path.split(' ').collect();
        at(program, &words, &text)
    })
}

/// Puts the text at the end of the help of the command to which the words lead.
fn at(command: Command, path: &[&str], text: &str) -> Command {
    let [first, rest @ ..] = path else { return command.after_help(text.to_owned()) };
    // `mut_subcommand` would put the command behind all others.
    command.mut_subcommands(|sub| if sub.get_name() == *first { at(sub, rest, text) } else { sub })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// Columns of a terminal that nobody made wider.
    const COLUMNS: usize = 100;

    /// The words of a line as a shell splits them, as far as examples go: with quotes, without pipes and redirections.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        words
    }

    /// The calls of this program in a line.
    fn calls(line: &str) -> Vec<Vec<String>> {
        if let Some((before, rest)) = line.split_once("$(") {
            let (inner, after) = rest.split_once(')').unwrap();
            return [calls(inner), calls(&format!("{before}x{after}"))].concat();
        }
        let pieces = line.split(" | ").flat_map(|piece| piece.split("<("));
        let plain = pieces.map(|piece| piece.split([')', '>', '<']).next().unwrap().trim());
        let ours = plain.filter_map(|piece| piece.find("atoll ").map(|at| words(&piece[at..])));
        ours.filter(|words| words.len() > 1).collect()
    }

    #[test]
    fn examples_are_lines_that_the_program_takes() {
        for (path, lines) in EXAMPLES {
            for (line, _) in *lines {
                let calls = calls(line);
                assert!(!calls.is_empty(), "{path}: {line}");
                for call in calls {
                    let read = Cli::program().try_get_matches_from(&call);
                    assert!(read.is_ok(), "{line}: {call:?}: {}", read.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn every_command_has_examples_that_fit() {
        let program = Cli::program();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let text = command.get_after_help().unwrap_or_else(|| panic!("{name} has none")).to_string();
            assert!(text.contains(&format!("atoll {name}")), "{name}: {text}");
            let wide = text.lines().find(|line| line.starts_with("  ") && line.chars().count() > COLUMNS);
            assert_eq!(wide, None, "{name}");
        }
        let listed: std::collections::BTreeSet<_> = EXAMPLES.iter().map(|(path, _)| path).collect();
        assert_eq!(listed.len(), EXAMPLES.len(), "one of them is there twice");
    }
}
