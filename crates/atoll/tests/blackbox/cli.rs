//! What is typed and what is printed: arguments, completions, logins, refusals, JSON and copies, with a real server behind them.
//! `cli_commands` has what happens to a command that runs in a sandbox, `cli_host` what the program does on the host itself.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use atoll_blackbox::{Server, command, program};
use serde_json::Value;

/// As `docker exec` takes them: the arguments after the command are the command's.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_needs_no_dashes_before_it() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    for args in [
        &["exec", "box", "echo", "-n", "--json", "x"][..],
        &["exec", "-e", "A=1", "box", "--", "echo", "-n", "--json", "x"],
        &["exec", "box", "--user", "root", "echo", "-n", "--json", "x"],
        &["run", "--", "echo", "-n", "--json", "x"],
        &["run", "echo", "-n", "--json", "x"],
    ] {
        assert_eq!(server.cli(args).ok().stdout, "--json x", "{args:?}");
    }
    let none = server.cli(&["exec", "box"]);
    assert!(none.code == Some(2) && none.stderr.contains("<CMD>"), "{none:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_are_of_what_people_use() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    server.cli(&["create", "--name", "crate"]).ok();
    server.cli(&["volume", "create", "data"]).ok();
    // Bash itself, as at a TAB behind the last word.
    let complete = |server: &Server, program_command: &mut Command, words: &str| {
        let script = format!(
            "atoll() {{ {program} \"$@\"; }}; export -f atoll; PATH=$(dirname {program}):$PATH; source <(atoll completions bash); \
             COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; \
             $(complete -p atoll | sed 's/.*-F \\([^ ]*\\).*/\\1/') atoll \"${{COMP_WORDS[COMP_CWORD]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            program = program().display()
        );
        let output = program_command.args(["-c", &script]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words}: {output:?}\n{}", server.log());
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let bash = || {
        let mut bash = command(Path::new("bash"));
        bash.env("ATOLL_URL", &server.url).env("ATOLL_API_KEY", &server.key);
        bash
    };
    let all = complete(&server, &mut bash(), "atoll ''");
    assert!(all.iter().any(|word| word == "template"), "{all:?}");
    assert!(!all.iter().any(|word| ["vmm", "sentry", "ssh-proxy"].contains(&word.as_str())), "{all:?}");
    assert_eq!(complete(&server, &mut bash(), "atoll rm b"), ["box"]);
    let both = complete(&server, &mut bash(), "atoll exec ''");
    assert!(both.contains(&"box".to_owned()) && both.contains(&"crate".to_owned()), "{both:?}");
    assert_eq!(complete(&server, &mut bash(), "atoll volume rm ''")[0], "data");
    // By an option that was typed, and quietly nothing where there is no server or no right.
    let typed = format!("atoll --url {} inspect b", server.url);
    assert_eq!(complete(&server, bash().env_remove("ATOLL_URL"), &typed), ["box"]);
    assert!(complete(&server, bash().env("ATOLL_API_KEY", "wrong"), "atoll rm b").is_empty());
    assert!(complete(&server, bash().env("ATOLL_URL", "http://127.0.0.1:1"), "atoll rm b").is_empty());
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = server.cli(&["completions", shell]).ok().stdout;
        assert!(script.contains("COMPLETE") && script.contains("atoll"), "{shell}: {script}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_logged_in_to_once() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("atoll/config.toml");
    let run = |args: &[&str], input: &str| {
        let mut child = command(program())
            .env("XDG_CONFIG_HOME", home.path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // A key that is refused is not kept.
    let (code, _, said) = run(&["login", &server.url], "wrong\n");
    assert!(code != Some(0) && said.contains("API key") && !file.exists(), "{code:?} {said}");
    fs::create_dir(home.path().join("atoll")).unwrap();
    fs::write(&file, "# mine\n[presets]\nours = [\"a.example\"] # kept\n").unwrap();
    let (code, _, said) = run(&["login", &server.url], &format!("{}\n", server.key));
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(&server.key), "{said}");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (code, out, said) = run(&["ls"], "");
    assert_eq!(code, Some(0), "{out}{said}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# mine") && text.contains("ours = [\"a.example\"] # kept"), "{text}");
    let (code, out, said) = run(&["net", "presets"], "");
    assert!(code == Some(0) && out.contains("@ours"), "{out}{said}");
    assert_eq!(run(&["logout"], "").0, Some(0));
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("url") && !text.contains("api_key") && text.contains("ours"), "{text}");
    let (code, _, said) = run(&["ls"], "");
    assert!(code != Some(0) && said.contains("no server is configured"), "{said}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_shell_says_where_it_is() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let login = ["exec", "-w", "/tmp", "box", "--", "bash", "-lc", "printf %s \"${PS1@P}\""];
    assert_eq!(server.cli(&login).ok().stdout, "root@box:/tmp# ");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_to_do() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let local = tempfile::tempdir().unwrap();
    let missing = local.path().join("missing").display().to_string();
    let rootfs = local.path().join("rootfs.tar").display().to_string();
    let taken = server.url.trim_start_matches("http://");
    assert!(Command::new("tar").args(["cf", &rootfs, "-C", "/etc", "hostname"]).status().unwrap().success());
    for (args, code, says) in [
        (&["exec", "nope", "--", "true"][..], 125, "nope"),
        (&["create", "--image", "127.0.0.1:1/no/such:image"], 125, "pulling it"),
        (&["create", "--name", "box"], 125, "box"),
        (&["create", "--name", "Not Good"], 125, "name"),
        (&["exec", "-w", "/no/such", "box", "--", "true"], 125, "/no/such"),
        (&["exec", "-u", "nobody-here", "box", "--", "true"], 125, "nobody-here"),
        (&["exec", "-t", "box", "--", "true"], 2, "terminal"),
        (&["cp", "box:relative", "."], 2, "absolute"),
        (&["cp", &missing, "box:/tmp/"], 125, "missing"),
        (&["cp", "box:/no/such", "."], 125, "/no/such"),
        (&["logs", "box", "ex00000000000000000000"], 125, "ex0000"),
        (&["image", "pull", "127.0.0.1:1/x:y"], 125, "127.0.0.1:1"),
        (&["rm", "nope"], 125, "nope"),
        (&["exec", "box", "nosuchcommand"], 127, "'nosuchcommand' does not exist"),
        (&["exec", "box", "/etc/passwd"], 126, "'/etc/passwd' cannot be run"),
        (&["exec", "-e", "ATOLL_TEST_NEVER_SET", "box", "true"], 2, "no variable ATOLL_TEST_NEVER_SET"),
        (&["volume", "cp", "/tmp", "data:/x"], 125, "/tmp is a directory"),
        (&["image", "load", &rootfs], 125, "'atoll image import"),
        // In the words of the command line, not of the API.
        (&["create", "--memory", "1"], 125, "--memory: 1 B is not between 16 MiB and"),
        // What users of docker write.
        (&["run", "nosuchimage", "true"], 127, "atoll run --image nosuchimage"),
        (&["run", "-p", "8080:80", "--", "true"], 2, "'atoll port url SANDBOX PORT'"),
        (&["run", "--network=host", "--", "true"], 2, "--internet on"),
        (&["cp", "-r", ".", "box:/"], 2, "directories are copied"),
        (&["run", "-v", "/tmp:/tmp", "--", "true"], 2, "'atoll cp' copies it"),
        (&["create", "debian"], 2, "'--image IMAGE'"),
        (&["snapshot", "create", "box", "--name", "x"], 2, "-t NAME:TAG"),
        (&["volume", "create", "--name", "x"], 2, "the name stands by itself"),
        (&["key", "create", "x", "--for", "langsmith"], 2, "take Atoll's own keys"),
        (&["link", "box", "/etc/passwd"], 2, "SANDBOX:/PATH"),
        (&["rollback", "box"], 2, "'atoll checkpoints SANDBOX'"),
        (&["serve", "--listen", "4600"], 2, "such as 127.0.0.1:4600"),
        (&["serve", "--listen", taken, "--data-dir", &missing], 125, "another address with --listen"),
        (&["ps"], 2, "'atoll ls' lists sandboxes"),
        (&["login", "registry.example"], 125, "atoll registry login"),
        (&["ls", "--lable", "a=b"], 2, "did you mean '--label'?"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["create", "--memory", "lots"], 2, "lots"),
        (&["run"], 2, "CMD"),
    ] {
        let output = server.cli(args);
        assert_eq!(output.code, Some(code), "{args:?}: {output:?}");
        assert!(output.stderr.contains(says) && output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    let json = server.cli(&["--json", "exec", "nope", "--", "true"]);
    let text = if json.stdout.is_empty() { &json.stderr } else { &json.stdout };
    let error: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let error = error.get("error").unwrap_or(&error);
    assert_eq!(error["code"], "sandbox_not_found", "{json:?}");
    // No server there, a wrong key, no configuration at all.
    let run = |url: &str, key: &str| {
        let output = command(program()).args(["ls"]).env("ATOLL_URL", url).env("ATOLL_API_KEY", key).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run("http://127.0.0.1:1", "x");
    assert!(code == Some(125) && text.contains("is the server running"), "{text}");
    let (code, text) = run(&server.url, "wrong");
    assert!(code == Some(125) && text.contains("ATOLL_API_KEY"), "{text}");
    let (code, text) = run(&server.url, "");
    assert!(code == Some(125) && text.contains("no API key is set"), "{text}");
    let (code, text) = run("127.0.0.1:1", "x");
    assert!(code == Some(125) && text.contains("begins with http://"), "{text}");
    let (code, text) = run("", "");
    assert!(code == Some(125) && text.contains("atoll serve"), "{text}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_come_from_arguments_files_and_from_here() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("env");
    fs::write(&file, "# of a project\nexport A=1\nB=\"two words\"\nC=file\n").unwrap();
    let file = file.to_str().unwrap();
    let with_here = |args: &[&str]| {
        let output = server.cli_command().args(args).env("FROM_HERE", "here").output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    with_here(&["create", "--name", "box", "-e", "FROM_HERE", "--env-file", file]);
    let print = ["sh", "-c", "echo $FROM_HERE,$A,$B,$C"];
    assert_eq!(with_here(&[&["exec", "box"][..], &print].concat()), "here,1,two words,file\n");
    let said = ["exec", "--env-file", file, "-e", "C=said", "box"];
    assert_eq!(with_here(&[&said[..], &print].concat()), "here,1,two words,said\n");
    // A file does not choose what of the caller's goes in, and what is in it is not said.
    fs::write(file, "A=1\nFROM_HERE\n").unwrap();
    let taking = ["exec", "--env-file", file, "box", "true"];
    let refused = server.cli_command().args(taking).env("FROM_HERE", "here").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("line 2 of") && !said.contains("FROM_HERE"), "{said}");
    server.finish().await;
}

/// Terminals obey the characters above U+007F, too, and show a text in another order than it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_says_of_itself_does_not_drive_the_terminal() {
    const SAID: &str = "\u{9b}31m\u{9d}0;t\u{7f}\u{202e}\u{1b}[8m";
    let hostile = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let exec = server.cli(&["exec", "-d", "box", "sh", "-c", "sleep 1000", SAID]).ok().stdout;
    for args in [&["ps", "box"][..], &["--json", "ps", "box"], &["inspect", "box", exec.trim()]] {
        let shown = server.cli(args).ok().stdout;
        assert!(shown.contains("sleep 1000") && !shown.contains(hostile), "{args:?}: {shown:?}");
    }
    let list = server.cli(&["--json", "ps", "box"]).ok().json();
    assert!(list.to_string().contains(&Value::from(SAID).to_string()), "it means the same: {list}");
    for args in [&["create", "--memory", SAID][..], &["--json", "create", "--memory", SAID], &["rm", SAID]] {
        let refused = server.cli(args);
        assert_ne!(refused.code, Some(0), "{args:?}: {refused:?}");
        assert!(!refused.stderr.is_empty() && !refused.stderr.contains(hostile), "{args:?}: {refused:?}");
    }
    // What a command writes is passed on as it is.
    assert_eq!(server.cli(&["exec", "box", "printf", "%s", SAID]).ok().stdout, SAID);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_speaks_json() {
    let server = Server::start();
    let sandbox = server.cli(&["create", "--name", "box", "-l", "a=b", "--json"]).ok().json();
    assert_eq!((sandbox["name"].as_str(), sandbox["state"].as_str()), (Some("box"), Some("running")));
    let exec =
        server.cli(&["exec", "-d", "box", "--json", "--", "sh", "-c", "echo hi; sleep 1000"]).ok().json();
    let exec = exec["id"].as_str().unwrap().to_owned();
    for args in [
        &["ls"][..],
        &["ls", "-l", "a=b", "--state", "running"],
        &["ps", "box"],
        &["inspect", "box"],
        &["inspect", "box", &exec],
        &["metrics", "box"],
        &["extend", "box", "1h"],
        &["update", "box", "-l", "c=d", "--memory", "256MiB"],
        &["net", "denied", "box"],
        &["trace", "tree", "box"],
        &["agent", "recipes"],
        &["agent", "versions"],
        &["image", "ls"],
        &["image", "prune"],
        &["template", "create", "t", "--image", "host"],
        &["template", "ls"],
        &["template", "show", "t:1"],
        &["key", "ls"],
        &["key", "create", "--scope", "read", "x"],
        &["registry", "ls"],
        &["info"],
        &["doctor"],
        &["doctor", "--leaks"],
    ] {
        let output = server.cli(&[&["--json"], args].concat()).ok();
        assert!(output.json().is_object(), "{args:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
        // The same without, for people.
        let plain = server.cli(args);
        assert_eq!(plain.code, Some(0), "{args:?}: {plain:?}");
    }
    // So does what has nothing to say.
    for (make, remove) in [
        (&["volume", "create", "v"][..], &["volume", "rm", "v"][..]),
        (&["pool", "set", "--image", "host", "1"], &["pool", "rm", "--image", "host"]),
        (&["service", "add", "box", "s", "--", "sleep", "100"], &["service", "rm", "box", "s"]),
        (&["checkpoint", "box"], &["checkpoints", "box", "--rm", "1"]),
    ] {
        server.cli(make).ok();
        let removed = server.cli(&[&["--json"], remove].concat()).ok().json();
        assert_eq!(removed["removed"].as_array().map(Vec::len), Some(1), "{remove:?}: {removed}");
    }
    server.cli(&["snapshot", "create", "box", "-t", "base:1"]).ok();
    for (list, want) in [
        (&["ls", "-q"][..], sandbox["id"].as_str().unwrap()),
        (&["template", "ls", "-q"], "t"),
        (&["image", "ls", "-q"], ""),
        (&["volume", "ls", "-q"], ""),
    ] {
        assert_eq!(server.cli(list).ok().stdout.trim_end(), want, "{list:?}");
    }
    for list in [&["ps", "-q", "box"][..], &["snapshot", "ls", "-q"]] {
        let ids = server.cli(list).ok().stdout;
        assert!(!ids.is_empty() && ids.lines().all(|id| id.len() == exec.len()), "{list:?}: {ids}");
    }
    let used = server.cli(&["usage"]).ok().stdout;
    assert!(used.lines().any(|line| line.starts_with("box ")), "by its name: {used}");
    let told = server.cli(&["trace", "box"]).ok().stdout;
    assert!(told.contains("began to record (on)") && !told.contains('{'), "{told}");
    let lines = server.cli(&["--json", "exec", "box", "--", "echo", "hi"]).ok();
    assert!(lines.stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines:?}");
    server.cli(&["kill", "box", &exec]).ok();
    assert!(server.cli(&["--version"]).ok().stdout.starts_with("atoll "));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_go_both_ways() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let dir = tempfile::Builder::new().prefix("atoll-cp-").tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(at("file"), &content).unwrap();
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::create_dir_all(at("tree/empty")).unwrap();
    fs::write(at("tree/a b"), "text").unwrap();
    std::os::unix::fs::symlink("a b", at("tree/link")).unwrap();
    // A file under a new name, and into a directory.
    server.cli(&["cp", &at("file"), "box:/home/user/new"]).ok();
    server.cli(&["cp", &at("file"), "box:/tmp"]).ok();
    let stat =
        server.cli(&["exec", "box", "--", "stat", "-c", "%a %s %n", "/home/user/new", "/tmp/file"]).ok();
    assert_eq!(stat.stdout, "751 3000000 /home/user/new\n751 3000000 /tmp/file\n");
    server.cli(&["cp", "box:/tmp/file", &at("back")]).ok();
    assert!(fs::read(at("back")).unwrap() == content);
    assert_eq!(fs::metadata(at("back")).unwrap().permissions().mode() & 0o777, 0o751);
    // A directory.
    server.cli(&["cp", &at("tree"), "box:/home/user"]).ok();
    server.cli(&["cp", "box:/home/user/tree", &at("tree2")]).ok();
    assert_eq!(fs::read_to_string(at("tree2/a b")).unwrap(), "text");
    assert_eq!(fs::read_link(at("tree2/link")).unwrap(), Path::new("a b"));
    assert!(fs::metadata(at("tree2/empty")).unwrap().is_dir());
    // A tar on standard output and input.
    let tar = server.cli_command().args(["cp", "box:/home/user/tree", "-"]).output().unwrap();
    assert!(tar.status.success());
    let mut child = server.cli_command().args(["cp", "-", "box:/srv"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(server.cli(&["exec", "box", "--", "cat", "/srv/tree/a b"]).ok().stdout, "text");
    // A sandbox cannot write outside the destination: its tar is hostile.
    let trap =
        "rm -rf /tmp/t; mkdir /tmp/t; ln -s /var/tmp /tmp/t/out; mkdir /tmp/u; echo x > /tmp/u/atoll-escape";
    server.cli(&["exec", "box", "--", "sh", "-c", trap]).ok();
    server.cli(&["cp", "box:/tmp/t", &at("t")]).ok();
    server.cli(&["cp", "box:/tmp/u", &at("t")]);
    assert!(!crate::common::is_there("/var/tmp/atoll-escape".as_ref()));
    server.finish().await;
}
