use super::*;
use proptest::prelude::*;

fn actions(text: &str) -> Vec<Action> {
    let recipe = parse(text).unwrap();
    recipe.stages.into_iter().flat_map(|stage| stage.instructions).map(|i| i.action).collect()
}

fn text(text: &str) -> String {
    text.to_owned()
}

#[test]
fn every_instruction() {
    let read = actions(
        "ARG BASE=x\nFROM $BASE as Build\nRUN a && \\\n  b\nRUN [\"a\", \"b c\"]\nRUN [ -f x ]\n\
         ENV A=1 B=\"2 3\"\nENV OLD one two\nARG X Y=1\nWORKDIR /w\nUSER app:app\nCMD [\"x\"]\nENTRYPOINT y z\n\
         EXPOSE 80/tcp 443\nLABEL a.b=\"c d\"\nSHELL [\"/bin/bash\", \"-c\"]\n\
         COPY --from=build --chown=a:b --chmod=0755 --link x y /z/\nADD [\"a b\", \"/c\"]\n",
    );
    assert_eq!(read[0], Action::Run(Command::Shell(text("a &&   b")), Vec::new()));
    assert_eq!(read[1], Action::Run(Command::Argv(vec![text("a"), text("b c")]), Vec::new()));
    assert_eq!(read[2], Action::Run(Command::Shell(text("[ -f x ]")), Vec::new()));
    assert_eq!(read[3], Action::Env(vec![(text("A"), text("1")), (text("B"), text("\"2 3\""))]));
    assert_eq!(read[4], Action::Env(vec![(text("OLD"), text("one two"))]));
    assert!(
        matches!(&read[5], Action::Arg(args) if args.len() == 2 && args[1].default.as_deref() == Some("1"))
    );
    assert_eq!(read[11], Action::Label(vec![(text("a.b"), text("\"c d\""))]));
    assert!(matches!(&read[13], Action::Copy(copy) if copy.sources.len() == 2
        && copy.from.as_deref() == Some("build") && copy.chmod == Some(0o755) && !copy.add));
    assert!(
        matches!(&read[14], Action::Copy(copy) if copy.sources == [Source::Path(text("a b"))] && copy.add)
    );
    let recipe = parse("FROM a AS One\nFROM one\n").unwrap();
    assert_eq!(recipe.stages[0].name.as_deref(), Some("one"));
}

#[test]
fn heredocs() {
    let read = actions(
        "FROM a\nRUN <<EOF\necho one\necho two\nEOF\nRUN python3 <<'P' >x\nprint(1)\nP\n\
         COPY <<\"A\" <<B /dir/\n$x\nA\nb\nB\n",
    );
    assert_eq!(read[0], Action::Run(Command::Shell(text("echo one\necho two\n")), Vec::new()));
    assert_eq!(read[1], Action::Run(Command::Shell(text("python3 <<'P' >x\nprint(1)\nP\n")), Vec::new()));
    let inline = |name: &str, content: &str| Source::Inline { name: text(name), content: text(content) };
    assert!(
        matches!(&read[2], Action::Copy(copy) if copy.sources == [inline("A", "$x\n"), inline("B", "b\n")])
    );
}

#[test]
fn what_means_nothing_here_is_passed_over_and_told() {
    let recipe = parse(
        "FROM a\nMAINTAINER me\nVOLUME [\"/data\"]\nHEALTHCHECK --interval=5s CMD true\nSTOPSIGNAL 9\n\
         RUN --network=default --mount=type=cache,target=/root/.cache pip install x\n",
    )
    .unwrap();
    assert_eq!(recipe.stages[0].instructions.len(), 1);
    let told: Vec<_> = recipe.notes.iter().map(|note| note.split(':').next().unwrap()).collect();
    let places =
        ["line 2, column 1", "line 3, column 1", "line 4, column 1", "line 5, column 1", "line 6, column 23"];
    assert_eq!(told, places, "{:?}", recipe.notes);
    assert!(recipe.notes[1].contains("VOLUME has no effect"));
}

#[test]
fn what_is_wrong_is_placed() {
    for (file, code, message) in [
        ("", Code::BuildFileInvalid, "line 1, column 1: there is no FROM"),
        ("RUN x", Code::BuildFileInvalid, "line 1, column 1: RUN stands before the first FROM"),
        ("FROM a\n  FETCH x", Code::BuildFileInvalid, "line 2, column 3: there is no instruction 'FETCH'"),
        ("FROM a\nONBUILD RUN x", Code::InstructionUnsupported, "line 2, column 1: ONBUILD is not supported"),
        (
            "FROM a\nRUN --mount=type=bind x",
            Code::BuildFileInvalid,
            "line 2, column 5: --mount wants a target",
        ),
        ("FROM a\nRUN --mount=type=ssh x", Code::InstructionUnsupported, "line 2, column 5: RUN --mount"),
        ("FROM a\nRUN --network=none x", Code::InstructionUnsupported, "line 2, column 5: RUN --network"),
        ("FROM a\nADD https://x/y b /z", Code::InstructionUnsupported, "line 2, column 1: ADD of an address"),
        ("FROM a\nADD https://x/y.git /z", Code::InstructionUnsupported, "line 2, column 5: ADD of a repo"),
        (
            "FROM a\nADD --checksum=sha256:12 https://x/y /z",
            Code::BuildFileInvalid,
            "line 2, column 5: 'sha256:12'",
        ),
        ("FROM a\nCOPY https://x/y /z", Code::BuildFileInvalid, "line 2, column 6: COPY takes files"),
        ("FROM a\nADD x.tar.gz /z", Code::InstructionUnsupported, "line 2, column 5: ADD of an archive"),
        ("FROM a\nCOPY --chmod=u+x a b", Code::BuildFileInvalid, "line 2, column 6: 'u+x'"),
        ("FROM a\nCOPY a", Code::BuildFileInvalid, "line 2, column 1: COPY wants"),
        ("FROM a AS b\nFROM c AS B", Code::BuildFileInvalid, "line 2, column 11: two stages"),
        ("FROM scratch", Code::InstructionUnsupported, "line 1, column 6: FROM scratch"),
        ("FROM --platform a", Code::BuildFileInvalid, "line 1, column 6: --platform wants a value"),
        ("FROM a\nENV A", Code::BuildFileInvalid, "line 2, column 1: ENV wants"),
        ("FROM a\nENV A=1 B", Code::BuildFileInvalid, "line 2, column 9: 'B' is not name=value"),
        ("FROM a\nSHELL sh", Code::BuildFileInvalid, "line 2, column 1: SHELL wants"),
        ("FROM a\nUSER", Code::BuildFileInvalid, "line 2, column 1: USER wants"),
        ("FROM a\n\0", Code::BuildFileInvalid, "line 2, column 1: a NUL"),
    ] {
        let error = parse(file).unwrap_err();
        assert_eq!(error.code, code, "{file}: {error}");
        assert!(error.message.starts_with(message), "{file}: {error}");
    }
    let many = format!("FROM a\n{}", "RUN x\n".repeat(2000));
    assert_eq!(parse(&many).unwrap_err().code, Code::TooLarge);
    assert_eq!(parse(&"#".repeat(DOCKERFILE_MAX_BYTES + 1)).unwrap_err().code, Code::TooLarge);
}

proptest! {
    #[test]
    fn never_panics(file in "(FROM a\n)?((RUN|COPY|ENV|ARG|LABEL|CMD|from)? ?[\\PC\n\\\\<'\"$\\[\\]=-]{0,30}\n){0,6}") {
        if let Err(error) = parse(&file) {
            prop_assert!(error.message.starts_with("line "), "{}", error);
        }
    }

    /// Dockerfiles in the plainest form are read as they were meant.
    #[test]
    fn round_trips(commands in proptest::collection::vec("[a-z][a-z0-9 ./&|;-]{0,30}[a-z]", 1..8), breaks in any::<bool>()) {
        let mut file = text("FROM image AS stage\n");
        for command in &commands {
            let body = if breaks { command.replace(' ', "\\\n ") } else { command.clone() };
            file.extend(["RUN ", &body, "\n"]);
        }
        let want: Vec<_> = commands.into_iter().map(|line| Action::Run(Command::Shell(line), Vec::new())).collect();
        prop_assert_eq!(actions(&file), want);
    }
}
