//! API keys, registry credentials, templates, images in use.

use std::collections::BTreeMap;

use atoll_core::Code;
use atoll_core::secret::Secret;
use atoll_core::spec::{ResourcesDraft, SandboxDraft, TemplateSpec};
use atoll_engine::{Caller, KeyScope};
use atoll_image::Credentials;

use crate::support::{Server, World, ms, until};

/// Every byte of the database's files.
fn database_bytes(world: &World) -> Vec<u8> {
    let files = ["atoll.db", "atoll.db-wal"].map(|name| std::fs::read(world.dir.path().join(name)));
    let bytes: Vec<u8> = files.into_iter().flatten().flatten().collect();
    assert!(bytes.len() > 4096);
    bytes
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_key_works_until_it_is_deleted() {
    let world = World::new();
    let server = world.start();
    let engine = &server.engine;
    let new = server.run(engine.create_key("ci", KeyScope::Exec, None)).unwrap();
    let text = new.secret.reveal();
    assert!(!contains(&database_bytes(&world), text), "only its hash is stored");
    let verify = |server: &Server, text: &str| server.run(async { server.engine.verify_key(text) });
    let verified = verify(&server, text).unwrap();
    assert_eq!((&verified.id, verified.scope), (&new.record.id, KeyScope::Exec));
    until("its use is recorded", || server.run(engine.keys()).unwrap()[0].last_used_ms.is_some());
    for wrong in ["", "atoll_", &text[1..], &text.replace('a', "b"), &format!("{text}0")] {
        assert_eq!(verify(&server, wrong).unwrap_err().code, Code::Unauthorized, "{wrong}");
    }
    server.kill();
    let server = world.start();
    let engine = &server.engine;
    assert_eq!(verify(&server, text).unwrap(), verified);
    // Even while the key is in use: once the deletion is answered the key does not work, and it does not come back.
    let verifiers: Vec<_> = (0..4)
        .map(|_| {
            let (engine, text) = (engine.clone(), text.to_owned());
            server.spawn(async move {
                while engine.verify_key(&text).is_ok() {
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    server.run(engine.delete_key(new.record.id.as_str())).unwrap();
    assert_eq!(verify(&server, text).unwrap_err().code, Code::Unauthorized);
    for verifier in verifiers {
        server.run(verifier).unwrap();
    }
    assert_eq!(verify(&server, text).unwrap_err().code, Code::Unauthorized);
    let missing = server.run(engine.delete_key(new.record.id.as_str())).unwrap_err();
    assert_eq!(missing.code, Code::KeyNotFound);
    assert_eq!(server.run(engine.keys()).unwrap(), []);
}

#[test]
fn keys_run_out_and_names_are_checked() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let create = |name: &str, ttl_ms| server.run(server.engine.create_key(name, KeyScope::Read, ttl_ms));
    let brief = create("brief", Some(3000)).unwrap();
    let verify = || server.run(async { server.engine.verify_key(brief.secret.reveal()) });
    clock.advance(ms(2999));
    verify().unwrap();
    clock.advance(ms(1));
    assert_eq!(verify().unwrap_err().code, Code::Unauthorized);
    let long = "x".repeat(129);
    for (name, ttl_ms) in [("", None), (long.as_str(), None), ("a\nb", None), ("a", Some(0))] {
        assert_eq!(create(name, ttl_ms).unwrap_err().code, Code::InvalidArgument);
    }
}

#[test]
fn registry_passwords_are_sealed() {
    const PASSWORD: &str = "correct-horse-battery-staple";
    let world = World::new();
    let server = world.start();
    let engine = &server.engine;
    let put = |host: &str, user: &str, password: &str| {
        server.run(engine.put_registry(host, None, user, &Secret::new(password)))
    };
    put("Registry.example:5000", "me", "older").unwrap();
    put("registry.example:5000", "me", PASSWORD).unwrap();
    assert!(contains(&database_bytes(&world), "registry.example:5000"));
    assert!(!contains(&database_bytes(&world), PASSWORD));
    assert_eq!(server.run(engine.registries()).unwrap().len(), 1);
    let get = |host: &str| server.run(engine.registry_credentials(host)).unwrap();
    assert!(matches!(get("REGISTRY.example:5000"), Some(Credentials::Basic { username, password })
        if username == "me" && password.reveal() == PASSWORD));
    assert!(get("registry.example").is_none());
    let long = "x".repeat((16 << 10) + 1);
    for (host, user, password) in [
        ("", "a", "b"),
        ("a/b", "a", "b"),
        ("a", "", "b"),
        ("a", "a", ""),
        ("a", "a", long.as_str()),
        ("a", "a\0", "b"),
    ] {
        assert_eq!(put(host, user, password).unwrap_err().code, Code::InvalidArgument, "{host}");
    }
    // A sealed password is of no use for another host.
    let mut moved = server.run(engine.registries()).unwrap().remove(0);
    moved.host = "evil.example".to_owned();
    server.run(server.store.put_registry(&moved)).unwrap();
    assert_eq!(server.run(engine.registry_credentials("evil.example")).unwrap_err().code, Code::Internal);
    server.run(engine.delete_registry("registry.EXAMPLE:5000")).unwrap();
    let missing = server.run(engine.delete_registry("registry.example:5000")).unwrap_err();
    assert_eq!(missing.code, Code::RegistryNotFound);
}

#[test]
fn templates_have_versions_and_sandboxes_follow_them() {
    let world = World::new();
    let server = world.start();
    let engine = &server.engine;
    let caller = Caller::system();
    let recipe = |n: u64| TemplateSpec {
        resources: ResourcesDraft { memory_bytes: Some(n << 30), ..ResourcesDraft::default() },
        labels: BTreeMap::from([("from".into(), format!("v{n}")), ("kept".into(), "yes".into())]),
        ttl_ms: Some(1_000_000),
        ..TemplateSpec::new("host")
    };
    for n in 1..=3 {
        let made = server.run(engine.create_template("tool", recipe(n), &caller)).unwrap();
        assert_eq!(u64::from(made.version), n);
    }
    server.run(engine.create_template("other", recipe(1), &caller)).unwrap();
    let newest: Vec<_> =
        server.run(engine.templates()).unwrap().into_iter().map(|t| (t.name, t.version)).collect();
    assert_eq!(newest, [("other".to_owned(), 1), ("tool".to_owned(), 3)]);
    let make = |template: &str| {
        let labels = BTreeMap::from([("from".to_owned(), "me".to_owned())]);
        server.create(SandboxDraft { template: Some(template.into()), labels, ..SandboxDraft::default() })
    };
    for (text, version) in [("tool", 3_u64), ("tool:1", 1)] {
        let record = make(text).unwrap();
        assert_eq!(record.spec.template, Some(format!("tool:{version}")));
        assert_eq!(record.spec.resources.memory_bytes, version << 30);
        assert_eq!((record.labels["from"].as_str(), record.labels["kept"].as_str()), ("me", "yes"));
        assert!(record.expires_ms.is_some());
    }
    server.run(engine.delete_template("tool", Some(3), &Caller::system())).unwrap();
    assert_eq!(make("tool").unwrap().spec.template.as_deref(), Some("tool:2"));
    assert_eq!(make("tool:3").unwrap_err().code, Code::TemplateNotFound);
    let next = server.run(engine.create_template("tool", recipe(4), &caller)).unwrap();
    assert_eq!(next.version, 4, "a number never means two things");
    server.run(engine.delete_template("tool", None, &Caller::system())).unwrap();
    assert_eq!(
        server.run(engine.delete_template("tool", None, &Caller::system())).unwrap_err().code,
        Code::TemplateNotFound
    );
    let refused = server.run(engine.create_template("x", TemplateSpec::new("missing"), &caller)).unwrap_err();
    assert_eq!(refused.code, Code::ImageNotFound);
}

#[test]
fn an_image_is_in_use_while_somebody_needs_it() {
    let world = World::new();
    let server = world.start();
    let engine = &server.engine;
    // An archive without members is a root without files.
    let image = server.run(engine.images().import("empty", std::io::Cursor::new(vec![0; 1024]))).unwrap();
    let in_use = || server.run(engine.images_in_use()).unwrap().contains(&image.digest);
    assert!(!in_use());
    let draft = SandboxDraft { image: Some("empty".into()), ..SandboxDraft::default() };
    let id = server.create(draft).unwrap().id;
    assert!(in_use());
    world.host.die(&id, atoll_isolation::Death::Exited);
    server.until_state(&id, Some(atoll_core::sandbox::SandboxState::Failed));
    assert!(in_use(), "its record still names it");
    server.delete(&id);
    assert!(!in_use());
    server.run(engine.create_template("t", TemplateSpec::new("empty"), &Caller::system())).unwrap();
    assert!(in_use());
    server.run(engine.delete_template("t", None, &Caller::system())).unwrap();
    assert!(!in_use());
}
