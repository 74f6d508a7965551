//! The output for people and programs, as snapshots. `INSTA_UPDATE=always cargo test` writes new ones.

#![expect(clippy::tests_outside_test_module, reason = "integration test")]

mod support;

use support::{Fake, bare, finish, show};

fn shown_bare(args: &[&str]) -> String {
    show(args, &finish(&mut bare(args)))
}

#[test]
fn help() {
    insta::assert_snapshot!("help", shown_bare(&["--help"]));
    for command in [
        "run", "exec", "cp", "ls", "rm", "update", "image", "registry", "template", "key", "login", "mcp",
        "top", "create", "serve", "net", "logs", "tunnel",
    ] {
        insta::assert_snapshot!(format!("help_{command}"), shown_bare(&[command, "--help"]));
    }
}

#[test]
fn help_is_a_command_too() {
    assert_eq!(
        finish(&mut bare(&["help", "image", "pull"])).stdout,
        finish(&mut bare(&["image", "pull", "--help"])).stdout
    );
}

#[test]
fn tables_and_documents() {
    let fake = Fake::start();
    insta::assert_snapshot!("ls", fake.shown(&["ls"]));
    insta::assert_snapshot!("ls_all", fake.shown(&["ls", "-a"]));
    insta::assert_snapshot!("ls_quiet", fake.shown(&["ls", "-q"]));
    insta::assert_snapshot!("ls_json", fake.shown(&["ls", "--json"]));
    insta::assert_snapshot!("create", fake.shown(&["create", "--image", "debian", "--memory", "512MiB"]));
    insta::assert_snapshot!("run_json", fake.shown(&["run", "--json", "--", "both"]));
    insta::assert_snapshot!("rm", fake.shown(&["rm", "sb_1", "sb_2"]));
}

#[test]
fn errors() {
    let fake = Fake::start();
    insta::assert_snapshot!("error", fake.shown(&["inspect", "none"]));
    insta::assert_snapshot!("error_json", fake.shown(&["inspect", "none", "--json"]));
    insta::assert_snapshot!("error_missing_command", fake.shown(&["run", "--", "missing"]));
    insta::assert_snapshot!("error_usage", fake.shown(&["run", "--memory", "much", "--", "x"]));
    insta::assert_snapshot!(
        "error_usage_json",
        fake.shown(&["run", "--json", "--memory", "much", "--", "x"])
    );
    insta::assert_snapshot!("error_all", fake.shown(&["rm", "--all"]));
    insta::assert_snapshot!("error_tty", fake.shown(&["run", "-t", "--", "x"]));
    insta::assert_snapshot!("error_password", fake.shown(&["registry", "login", "-u", "me", "h"]));
    insta::assert_snapshot!("error_cp", fake.shown(&["cp", "a", "b"]));
    insta::assert_snapshot!("error_no_server", shown_bare(&["ls"]));
    insta::assert_snapshot!("error_habit", shown_bare(&["images"]));
    insta::assert_snapshot!("error_habit_build", shown_bare(&["build", "."]));
    insta::assert_snapshot!("error_sandbox_as_command", shown_bare(&["port", "dev"]));
    insta::assert_snapshot!("error_missing_port", shown_bare(&["port", "url", "dev"]));
    insta::assert_snapshot!("error_word", shown_bare(&["trace", "show", "dev"]));
    insta::assert_snapshot!("error_diff", fake.shown(&["diff", "sb_1", "sb_2"]));
    insta::assert_snapshot!("error_similar", shown_bare(&["--json", "image", "pul"]));
    insta::assert_snapshot!("error_unknown", shown_bare(&["sentri"]));
    insta::assert_snapshot!("error_option", shown_bare(&["ls", "--lable", "a=b"]));
    insta::assert_snapshot!("error_option_habit", shown_bare(&["run", "-d", "host", "sleep", "1"]));
    insta::assert_snapshot!("error_option_json", shown_bare(&["cp", "-r", "a", "b:/", "--json"]));
    insta::assert_snapshot!("error_missing_argument", shown_bare(&["exec"]));
    insta::assert_snapshot!("error_image_as_command", fake.shown(&["run", "missing"]));
    let keyless = finish(fake.atoll(&["ls"]).env_remove("ATOLL_API_KEY"));
    insta::assert_snapshot!("error_keyless", show(&["ls"], &keyless));
    let wrong_key = finish(fake.atoll(&["ls"]).env("ATOLL_API_KEY", "wrong"));
    insta::assert_snapshot!("error_key", show(&["ls"], &wrong_key));
}

#[test]
fn flags_win_over_environment_and_environment_over_file() {
    let fake = Fake::start();
    let dir = tempfile::Builder::new().prefix("atoll").tempdir().unwrap();
    let config = dir.path().join("atoll/config.toml");
    std::fs::create_dir(dir.path().join("atoll")).unwrap();
    std::fs::write(&config, format!("url = \"http://{}\"\napi_key = \"sesame\"\n", fake.address)).unwrap();
    let file = |args: &[&str]| {
        let mut command = bare(args);
        command.env("XDG_CONFIG_HOME", dir.path());
        command
    };
    assert_eq!(finish(&mut file(&["ls"])).status.code(), Some(0));
    // The environment's key is the wrong one.
    assert_eq!(finish(file(&["ls"]).env("ATOLL_API_KEY", "wrong")).status.code(), Some(125));
    let key = dir.path().join("key");
    std::fs::write(&key, "sesame\n").unwrap();
    let args = ["ls", "--api-key-file", key.to_str().unwrap()];
    assert_eq!(finish(file(&args).env("ATOLL_API_KEY", "wrong")).status.code(), Some(0));
    let elsewhere = finish(file(&["ls", "--url", "http://127.0.0.1:9"]).env("ATOLL_API_KEY", "sesame"));
    assert_eq!(elsewhere.status.code(), Some(125));

    std::fs::write(&config, "api_key = \"sesame\"\nport = 1\n").unwrap();
    let output = finish(&mut file(&["ls"]));
    let text = show(&["ls"], &output).replace(&dir.path().display().to_string(), "DIR");
    insta::assert_snapshot!("error_config", text);
}
