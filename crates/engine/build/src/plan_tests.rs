use super::*;
use crate::context::Entry;
use crate::graph::Graph;

struct Case<'a> {
    file: &'a str,
    args: &'a [(&'a str, &'a str)],
    content: &'a str,
}

impl Case<'_> {
    fn plan(&self) -> Result<Vec<StagePlan>> {
        let recipe = crate::parse(self.file)?;
        let given: BTreeMap<String, String> =
            self.args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let file =
            Entry::File { mode: 0o644, size: 1, digest: *blake3::hash(self.content.as_bytes()).as_bytes() };
        let context = ContextIndex { entries: BTreeMap::from([("file".to_owned(), file)]) };
        let ignore = Ignore::default();
        let planner = Planner {
            recipe: &recipe,
            given: &given,
            context: &context,
            ignore: &ignore,
            architecture: "amd64",
            budget: &Budget::default(),
        };
        let graph = Graph::new(&recipe, &planner.bases()?, None)?;
        let mut plans: BTreeMap<usize, StagePlan> = BTreeMap::new();
        for index in graph.needed {
            let base = match &graph.bases[index] {
                Origin::Stage(stage) => plans[stage].end.clone(),
                Origin::Image(name) => State::new(Key::base(name, "container")),
            };
            let key = |origin: &Origin| match origin {
                Origin::Stage(stage) => Ok(plans[stage].end.key),
                Origin::Image(name) => Ok(Key::base(name, "container")),
            };
            let plan = plan_stage(&planner, index, base, &key)?;
            plans.insert(index, plan);
        }
        Ok(plans.into_values().collect())
    }
}

fn plan(file: &str) -> Vec<StagePlan> {
    Case { file, args: &[], content: "" }.plan().unwrap()
}

fn keys(case: &Case<'_>) -> Vec<Key> {
    case.plan().unwrap().into_iter().flat_map(|plan| plan.steps).map(|step| step.key).collect()
}

#[test]
fn variables_and_directories() {
    let plans = plan(
        "ARG TAG=1\nFROM img:${TAG} AS a\nARG TAG\nENV HOME=/h A=$TAG\nWORKDIR $HOME\nWORKDIR sub\n\
         ARG X=${A}2\nUSER u\nRUN go\nCOPY file ./\nENTRYPOINT [\"/e\"]\nCMD run $A\n",
    );
    let StagePlan { steps, end } = &plans[0];
    assert_eq!(steps.len(), 4);
    assert_eq!(steps[1].work, Work::Directory("/h/sub".to_owned()));
    let Work::Run { argv, env, user, cwd, .. } = &steps[2].work else { panic!("{:?}", steps[2]) };
    assert_eq!((argv[2].as_str(), user.as_str(), cwd.as_str()), ("go", "u", "/h/sub"));
    assert_eq!([&env["A"], &env["X"], &env["TAG"]], ["1", "12", "1"]);
    let Work::CopyContext { to, .. } = &steps[3].work else { panic!("{:?}", steps[3]) };
    assert_eq!((to.path.as_str(), to.directory), ("/h/sub", true));
    assert_eq!((&end.entrypoint[..], &end.cmd[2..]), (&["/e".to_owned()][..], &["run $A".to_owned()][..]));
    // Arguments do not outlive the build.
    assert!(!end.env.contains_key("X"));
}

#[test]
fn a_key_follows_everything_that_matters_and_nothing_else() {
    let file = "FROM a\nARG V=1\nRUN one\nCOPY file /x\nRUN two\n";
    let base = keys(&Case { file, args: &[], content: "1" });
    assert_eq!(base, keys(&Case { file, args: &[], content: "1" }));
    // Comments, line breaks and proxies mean nothing.
    let same = "FROM a\n# hello\nARG V=1\nRUN one\nCOPY file /x\n\nRUN \\\n two\n";
    let shifted = keys(&Case { file: same, args: &[("HTTP_PROXY", "http://p")], content: "1" });
    assert_eq!(base[..2], shifted[..2]);
    // A changed file changes its step and what follows.
    let changed = keys(&Case { file, args: &[], content: "2" });
    assert_eq!(base[0], changed[0]);
    assert!(base[1] != changed[1] && base[2] != changed[2]);
    // An argument changes every command after its declaration.
    let argument = keys(&Case { file, args: &[("V", "2")], content: "1" });
    assert_ne!(base[0], argument[0]);
    let env = keys(&Case {
        file: "FROM a\nARG V=1\nRUN one\nENV E=1\nCOPY file /x\nRUN two\n",
        args: &[],
        content: "1",
    });
    assert_eq!(base[0], env[0]);
    assert_ne!(base[1], env[1]);
    // LABEL, EXPOSE, CMD and ENTRYPOINT do not touch the file system.
    let quiet =
        "FROM a\nARG V=1\nLABEL a=b\nRUN one\nCMD x\nEXPOSE 80\nCOPY file /x\nENTRYPOINT y\nRUN two\n";
    assert_eq!(base, keys(&Case { file: quiet, args: &[], content: "1" }));
}

#[test]
fn stages_lean_on_each_other() {
    let file = |command: &str| format!("FROM a AS b\nRUN {command}\nFROM c\nRUN x\nCOPY --from=b /o/* /i/\n");
    let (one, two) = (file("one"), file("two"));
    let (one, two) = (
        keys(&Case { file: &one, args: &[], content: "" }),
        keys(&Case { file: &two, args: &[], content: "" }),
    );
    assert_eq!(one[1], two[1]);
    assert_ne!(one[2], two[2]);
    let plans = plan(&file("one"));
    assert!(matches!(&plans[1].steps[1].work, Work::CopyFrom { from: Origin::Stage(0), sources, .. }
        if sources == &["/o/*".to_owned()]));
}

#[test]
fn what_is_mounted_counts_by_its_content_and_a_secret_by_its_name() {
    let file = "FROM a AS t\nRUN one\nFROM a\nRUN --mount=source=file,target=f --mount=from=t,target=/t,source=/x \\\n\
                --mount=type=secret,id=s,env=S two\n";
    let keys_of = |file: &str, content: &str| keys(&Case { file, args: &[], content });
    let base = keys_of(file, "1");
    assert_eq!(base, keys_of(file, "1"));
    assert_ne!(base[1], keys_of(file, "2")[1], "the content");
    assert_ne!(base[1], keys_of(&file.replace("RUN one", "RUN three"), "1")[1], "the other stage");
    for (from, to) in
        [("id=s", "id=r"), ("env=S", "env=T"), ("target=f", "target=g"), ("source=/x", "source=/y")]
    {
        assert_ne!(base[1], keys_of(&file.replace(from, to), "1")[1], "{from}");
    }
    let plans = plan(file);
    let Work::Run { mounts, .. } = &plans[1].steps[0].work else { panic!("{plans:?}") };
    assert!(
        matches!(&mounts[0], Mounted::Context { target, selection } if target == "/f" && selection.single)
    );
    assert_eq!(plans[1].steps[0].work.origins().collect::<Vec<_>>(), [&Origin::Stage(0)]);
    let error = Case { file: "FROM a\nRUN --mount=target=/ x", args: &[], content: "" }.plan().unwrap_err();
    assert!(error.message.starts_with("line 2, column 5: the target of a mount is the root"), "{error}");
}

#[test]
fn what_is_fetched_is_known_by_address_and_checksum() {
    let digest = "a".repeat(64);
    let file = format!("FROM a\nARG V=1\nADD --checksum=sha256:{digest} https://x.example/v$V/y.tgz /opt/\n");
    let plans = plan(&file);
    let Work::Fetch { url, checksum, to } = &plans[0].steps[0].work else { panic!("{plans:?}") };
    assert_eq!((url.as_str(), checksum.as_deref()), ("https://x.example/v1/y.tgz", Some(digest.as_str())));
    assert_eq!((to.path.as_str(), to.directory), ("/opt", true));
    let base = keys(&Case { file: &file, args: &[], content: "" });
    assert_ne!(base, keys(&Case { file: &file, args: &[("V", "2")], content: "" }));
    let other = file.replace(&digest, &"b".repeat(64));
    assert_ne!(base, keys(&Case { file: &other, args: &[], content: "" }));
}

#[test]
fn what_is_wrong_is_placed() {
    for (file, message) in [
        ("FROM $X", "line 1, column 1: '$X' is empty"),
        ("FROM a\nENV A=${B:?needed}", "line 2, column 1: the variable 'B' is not set: needed"),
        ("FROM a\nUSER a b", "line 2, column 1: USER: not a user"),
        ("FROM a\nCOPY nope /", "line 2, column 1: 'nope' is not in the context"),
        ("FROM a AS b\nFROM b\nCOPY --from=b /x /y /z", "line 3, column 1: several sources"),
        ("FROM a\nRUN []", "line 2, column 1: RUN: the command is empty"),
    ] {
        let error = Case { file, args: &[], content: "" }.plan().unwrap_err();
        assert!(error.message.starts_with(message), "{file}: {error}");
    }
}

#[test]
fn a_platform_is_the_hosts() {
    let bases = |file: &str| {
        let recipe = crate::parse(file).unwrap();
        let (given, context, ignore) = (BTreeMap::new(), ContextIndex::default(), Ignore::default());
        let planner = Planner {
            recipe: &recipe,
            given: &given,
            context: &context,
            ignore: &ignore,
            architecture: "amd64",
            budget: &Budget::default(),
        };
        planner.bases()
    };
    for good in ["linux/amd64", "linux/amd64/v2", "linux", "$BUILDPLATFORM", "${TARGETPLATFORM}"] {
        assert_eq!(bases(&format!("FROM --platform={good} a")).unwrap(), ["a"], "{good}");
    }
    for bad in ["linux/arm64", "windows/amd64", "plan9"] {
        let error = bases(&format!("FROM --platform={bad} a")).unwrap_err();
        assert!(error.message.starts_with("line 1, column 6: --platform="), "{error}");
    }
}

#[test]
fn arguments_that_nobody_asks_for() {
    let recipe = crate::parse("ARG A\nFROM a\nARG B\n").unwrap();
    let given = ["A", "B", "C", "http_proxy"].map(|name| (name.to_owned(), String::new())).into();
    let (context, ignore) = (ContextIndex::default(), Ignore::default());
    let planner = Planner {
        recipe: &recipe,
        given: &given,
        context: &context,
        ignore: &ignore,
        architecture: "amd64",
        budget: &Budget::default(),
    };
    assert_eq!(planner.unused_args(), ["C"]);
}

/// Plans the only stage of a Dockerfile for a context of a thousand files.
fn within(file: &str, ignore: &str, budget: &Budget) -> Result<StagePlan> {
    let recipe = crate::parse(file)?;
    let file = Entry::File { mode: 0o644, size: 0, digest: [0; 32] };
    let names = (0..1000).map(|number| (format!("file{number}"), file.clone()));
    let (context, ignore) = (ContextIndex { entries: names.collect() }, Ignore::parse(ignore));
    let planner = Planner {
        recipe: &recipe,
        given: &BTreeMap::new(),
        context: &context,
        ignore: &ignore,
        architecture: "amd64",
        budget,
    };
    plan_stage(&planner, 0, State::new(Key::base("a", "container")), &|_| Ok(Key::base("b", "container")))
}

#[test]
fn a_short_text_cannot_ask_for_much_memory() {
    let value = "x".repeat(2000);
    for file in [
        format!("FROM a\n{}", "COPY . /x/\n".repeat(900)),
        format!("FROM a\nCOPY {}/x/\n", ". ".repeat(900)),
        format!("FROM a\n{}", "RUN --mount=target=/x x\n".repeat(900)),
        format!("FROM a\nENV A={value}\n{}", "RUN x\n".repeat(900)),
        format!("FROM a\nARG A={value}\nLABEL {}\n", "a=$A ".repeat(900)),
        format!("FROM a\nARG A={value}\nARG {}\n", "a=$A ".repeat(900)),
        format!("ARG A={value}\nARG {}\nFROM a\nRUN x\n", "a=$A ".repeat(900)),
    ] {
        let shown = file.chars().take(40).collect::<String>();
        let refused = within(&file, "", &Budget::new(u64::MAX, 1 << 20)).unwrap_err();
        assert!(refused.code == atoll_core::Code::TooLarge, "{shown}: {refused}");
        assert!(refused.message.contains("more than 1 MiB of files and values"), "{shown}: {refused}");
    }
    let few = "FROM a\nARG A=x\nENV B=$A\nCOPY . /x/\nRUN x\n";
    assert_eq!(within(few, "", &Budget::new(u64::MAX, 1 << 20)).unwrap().steps.len(), 2);
}

#[test]
fn a_short_text_cannot_ask_for_much_work() {
    let copy = "FROM a\nCOPY . /x/\n";
    let sources = format!("FROM a\nCOPY {}/x/\n", "f*e* ".repeat(900));
    for (file, ignore) in [(copy, "a*b\n".repeat(900)), (sources.as_str(), String::new())] {
        let refused = within(file, &ignore, &Budget::new(1_000_000, usize::MAX)).unwrap_err();
        assert!(refused.code == atoll_core::Code::TooLarge, "{refused}");
        assert!(refused.message.contains("too many patterns"), "{refused}");
    }
    let budget = Budget::default();
    assert_eq!(within(copy, "a*b\n", &budget).unwrap().steps.len(), 1);
    budget.end();
    within(copy, "", &budget).unwrap_err();
}
