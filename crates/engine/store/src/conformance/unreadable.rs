//! What must hold for rows that cannot be read: a list leaves them out and hides nothing else, the store says which row and
//! column it is, and what closes something stays closed.

use std::collections::BTreeMap;

use atoll_core::access::Target;
use atoll_core::agent::{EventKind, NewEvent, ScheduleSpec, ScheduleStatus, When};
use atoll_core::build::CommandText;
use atoll_core::code::ContextSpec;
use atoll_core::id::{AccessId, ContextId, KeyId, ScheduleId, ServiceId, SnapshotId, SshKeyId, VolumeId};
use atoll_core::pool::PoolSpec;
use atoll_core::project::Quota;
use atoll_core::service::{ServiceSpec, ServiceStatus};
use atoll_core::sharing::{Lease, Role, Visibility};
use atoll_core::snapshot::Purpose;
use atoll_core::usage::Usage;
use atoll_core::volume::VolumeState;
use futures::future::BoxFuture;
use sqlx::AssertSqlSafe;

use super::agents::{agent, session};
use super::builds::build;
use super::others::template;
use super::projects::{key, project};
use super::secrets::{secret, version};
use super::snapshots::snapshot;
use super::{exec, sandbox};
use crate::{
    AccessRecord, CacheRecord, ContextRecord, PoolRecord, RegistryRecord, SandboxFilter, ScheduleRecord,
    SecretUse, ServiceRecord, SnapshotFilter, SshKeyRecord, Store, StoreError, UsageFilter, VolumeRecord,
};

async fn sql(store: &Store, text: String) {
    let changed = store
        .write(move |mut conn| Box::pin(async move { conn.execute(AssertSqlSafe(text), Vec::new()).await }));
    changed.await.unwrap();
}

fn volume(n: u64) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId::from_parts(n, n),
        name: format!("volume-{n}"),
        project: None,
        state: VolumeState::Ready,
        size_bytes: 1 << 30,
        source: None,
        read_only: false,
        owner: None,
        created_ms: n,
    }
}

/// Two rows in every table that is read as a list; the ids are those of the parts 1 and 2.
async fn fill(store: &Store) {
    let home = sandbox(1, 1);
    for n in 1..=2_u8 {
        let wide = u64::from(n);
        store.insert_sandbox(&sandbox(wide, wide)).await.unwrap();
        store.insert_exec(&exec(&home, wide, wide)).await.unwrap();
        store.insert_build(&build(wide)).await.unwrap();
        let step = CacheRecord {
            key: format!("step-{n}"),
            snapshot: SnapshotId::from_parts(wide, wide),
            step: "RUN x".to_owned(),
            stored_bytes: 1,
            made_in_ms: 1,
            created_ms: wide,
            used_ms: wide,
        };
        store.put_cached_step(&step).await.unwrap();
        store.insert_snapshot(&snapshot(wide, Purpose::Snapshot)).await.unwrap();
        store.insert_template(&template(wide, "a")).await.unwrap();
        store.tag_template("a", n.into(), &[format!("tag-{n}")], wide).await.unwrap();
        store.insert_key(&key(n, None)).await.unwrap();
        store.insert_project(&project(wide, Quota::default()), 9).await.unwrap();
        store.insert_volume(&volume(wide)).await.unwrap();
        let pool = PoolRecord { name: format!("image:{n}"), spec: PoolSpec::fixed(1), updated_ms: wide };
        store.put_pool(&pool).await.unwrap();
        let registry = RegistryRecord {
            host: format!("host-{n}"),
            name: None,
            username: "u".to_owned(),
            sealed: vec![1],
            updated_ms: wide,
        };
        store.put_registry(&registry).await.unwrap();
        let ssh_key = SshKeyRecord {
            id: SshKeyId::from_parts(wide, wide),
            name: "laptop".to_owned(),
            public_key: format!("ssh-ed25519 AAAA{n}"),
            fingerprint: format!("SHA256:{n}"),
            owner: key(1, None).id,
            created_ms: wide,
            expires_ms: None,
        };
        store.insert_ssh_key(&ssh_key).await.unwrap();
        store.insert_secret(&secret(wide, &format!("S{n}"))).await.unwrap();
        fill_sandbox(store, n).await;
    }
    store.add_secret_version(&secret(1, "S1"), &version(2), 3).await.unwrap();
}

/// What is in the first sandbox.
async fn fill_sandbox(store: &Store, n: u8) {
    let (home, wide) = (sandbox(1, 1), u64::from(n));
    let used = SecretUse {
        id: format!("use-{n}"),
        at_ms: wide,
        secret: "S1".to_owned(),
        version: 1,
        sandbox: home.id.clone(),
        project: None,
        host: "h".to_owned(),
        method: "GET".to_owned(),
        path: "/".to_owned(),
        rule: "r".to_owned(),
    };
    store.insert_secret_uses(&[used]).await.unwrap();
    let ann = agent(n, &home, &format!("ann-{n}"));
    store.insert_agent(&ann).await.unwrap();
    let talk = session(n, &ann, None);
    store.insert_agent_session(&talk).await.unwrap();
    let schedule = ScheduleRecord {
        id: ScheduleId::from_parts(wide, wide),
        agent: ann.id.clone(),
        spec: ScheduleSpec { when: When::EveryMs(5000), thread: "t".to_owned(), text: "x".to_owned() },
        status: ScheduleStatus { next_ms: 7, last: None },
        created_ms: wide,
    };
    store.insert_schedule(&schedule).await.unwrap();
    let service = ServiceRecord {
        id: ServiceId::from_parts(wide, wide),
        sandbox: home.id.clone(),
        name: format!("web-{n}"),
        spec: ServiceSpec::new(CommandText::Shell("x".to_owned())),
        status: ServiceStatus::default(),
        created_ms: wide,
    };
    store.insert_service(&service).await.unwrap();
    let spec = ContextSpec { language: "python".to_owned(), cwd: None, env: BTreeMap::new() };
    let context = ContextRecord {
        id: ContextId::from_parts(wide, wide),
        sandbox: home.id.clone(),
        name: None,
        spec,
        created_ms: wide,
    };
    store.insert_context(&context).await.unwrap();
    let access = AccessRecord {
        id: AccessId::from_parts(wide, wide),
        sandbox: home.id.clone(),
        target: Target::Ports,
        name: None,
        hash: Some(vec![n; 32]),
        created_ms: wide,
        created_by: None,
        expires_ms: None,
    };
    store.insert_access(&access).await.unwrap();
    let of = sandbox(wide, wide).id;
    let usage = BTreeMap::from([(None, Usage { cpu_us: 1, ..Usage::default() })]);
    store.add_usage(&of, None, &usage, None, 1).await.unwrap();
    store.begin_rollback(&of, &SnapshotId::from_parts(1, 1)).await.unwrap();
    store.put_grant(&home.id, &key(n, None).id, Role::Exec).await.unwrap();
}

type Lister = for<'a> fn(&'a Store) -> BoxFuture<'a, Vec<String>>;

/// A list gives what tells its items apart.
macro_rules! lister {
    ($store:ident => $list:expr, $item:ident => $id:expr) => {{
        let lister: Lister = |$store| {
            Box::pin(async move { $list.await.unwrap().into_iter().map(|$item| $id.to_string()).collect() })
        };
        lister
    }};
}

struct Case {
    table: &'static str,
    key: &'static str,
    /// What is damaged in the first row: a value that has the column's type, but no meaning.
    column: &'static str,
    value: &'static str,
    /// The id that the row is known by.
    id: String,
    list: Lister,
}

fn case(
    table: &'static str,
    key: &'static str,
    damage: (&'static str, &'static str),
    id: impl ToString,
    list: Lister,
) -> Case {
    Case { table, key, column: damage.0, value: damage.1, id: id.to_string(), list }
}

fn cases() -> Vec<Case> {
    let (home, first) = (sandbox(1, 1), agent(1, &sandbox(1, 1), "ann-1"));
    let pages = lister!(s => async { s.list_sandboxes(&SandboxFilter::default(), None, 9).await.map(|page| page.items) }, one => one.id);
    let snapshots = lister!(s => async { s.list_snapshots(&SnapshotFilter::default(), None, 9).await.map(|page| page.items) }, one => one.id);
    let execs = lister!(s => async { s.list_execs(&sandbox(1, 1).id, &[], None, 9).await.map(|page| page.items) }, one => one.id);
    let open_execs = lister!(s => s.open_execs(&sandbox(1, 1).id), one => one.id);
    let builds =
        lister!(s => async { s.list_builds(&[], None, None, 9).await.map(|page| page.items) }, one => one.id);
    let contexts = lister!(s => s.list_contexts(&sandbox(1, 1).id), one => one.id);
    let usage = lister!(s => async { s.usage(&UsageFilter::default(), None).await.map(|(rows, _next)| rows) }, one => one.sandbox);
    let (keys, volumes) =
        (lister!(s => s.list_keys(), one => one.id), lister!(s => s.list_volumes(), one => one.id));
    let secrets = lister!(s => s.list_secrets(), one => one.id);
    let templates = lister!(s => s.list_templates(None), one => one.id);
    vec![
        case("sandboxes", "id", ("spec", "'{'"), &home.id, pages),
        case("sandboxes", "id", ("state", "'x'"), &home.id, pages),
        case("execs", "id", ("spec", "'{'"), exec(&home, 1, 1).id, execs),
        case("execs", "id", ("output_bytes", "-1"), exec(&home, 1, 1).id, open_execs),
        case("builds", "id", ("spec_version", "99"), build(1).id, builds),
        case(
            "build_cache",
            "cache_key",
            ("snapshot_id", "'x'"),
            "step-1",
            lister!(s => s.cached_steps(), one => one.key),
        ),
        case("snapshots", "id", ("manifest", "'{'"), snapshot(1, Purpose::Snapshot).id, snapshots),
        case("templates", "id", ("spec", "'{'"), template(1, "a").id, templates),
        case(
            "template_tags",
            "tag",
            ("set_ms", "-1"),
            "tag-1",
            lister!(s => s.template_tags("a"), one => one.tag),
        ),
        case("api_keys", "id", ("scopes", "'x'"), key(1, None).id, keys),
        case("api_keys", "id", ("created_ms", "-1"), key(1, None).id, keys),
        case(
            "projects",
            "id",
            ("defaults", "'{'"),
            project(1, Quota::default()).id,
            lister!(s => s.list_projects(), one => one.id),
        ),
        case("volumes", "id", ("state", "'x'"), volume(1).id, volumes),
        case("volumes", "id", ("owner", "'x'"), volume(1).id, volumes),
        case("pools", "name", ("spec", "'{'"), "image:1", lister!(s => s.list_pools(), one => one.name)),
        case(
            "registries",
            "host",
            ("updated_ms", "-1"),
            "host-1",
            lister!(s => s.list_registries(), one => one.host),
        ),
        case(
            "ssh_keys",
            "id",
            ("created_ms", "-1"),
            SshKeyId::from_parts(1, 1),
            lister!(s => s.list_ssh_keys(), one => one.id),
        ),
        case("secrets", "id", ("scope", "'{'"), secret(1, "S1").id, secrets),
        case(
            "secret_uses",
            "id",
            ("at_ms", "-1"),
            "use-1",
            lister!(s => s.list_secret_uses(None, None, 9), one => one.id),
        ),
        case("agents", "id", ("spec", "'{'"), &first.id, lister!(s => s.list_agents(), one => one.id)),
        case(
            "agent_sessions",
            "id",
            ("status", "'{'"),
            session(1, &first, None).id,
            lister!(s => s.list_agent_sessions(), one => one.id),
        ),
        case(
            "agent_schedules",
            "id",
            ("status", "'{'"),
            ScheduleId::from_parts(1, 1),
            lister!(s => s.list_schedules(), one => one.id),
        ),
        case(
            "services",
            "id",
            ("status", "'{'"),
            ServiceId::from_parts(1, 1),
            lister!(s => s.list_services(), one => one.id),
        ),
        case("contexts", "id", ("spec", "'{'"), ContextId::from_parts(1, 1), contexts),
        case(
            "accesses",
            "id",
            ("target", "'{'"),
            AccessId::from_parts(1, 1),
            lister!(s => s.list_accesses(), one => one.id),
        ),
        case("usage", "sandbox_id", ("cpu_us", "-1"), &home.id, usage),
        case(
            "rollbacks",
            "sandbox_id",
            ("snapshot_id", "'x'"),
            &home.id,
            lister!(s => s.rollbacks(), one => one.0),
        ),
    ]
}

pub(super) async fn every_list_goes_on_without_them(store: &Store) {
    fill(store).await;
    for Case { table, key, column, value, id, list } in cases() {
        let what = format!("{table}.{column}");
        let (before, met) = (list(store).await, store.unreadable());
        assert!(before.len() == 2 && before.contains(&id) && met.is_empty(), "{what}: {before:?} {met:?}");
        let spared =
            format!("CREATE TABLE spare AS SELECT {column} AS was FROM {table} WHERE {key} = '{id}'");
        sql(store, spared).await;
        sql(store, format!("UPDATE {table} SET {column} = {value} WHERE {key} = '{id}'")).await;
        let after = list(store).await;
        let left: Vec<_> = before.iter().filter(|one| **one != id).cloned().collect();
        assert_eq!(after, left, "{what}: it hides nothing but itself");
        let met = store.unreadable();
        let told: Vec<_> =
            met.remembered().iter().map(|row| (row.table, row.id.as_str(), row.column)).collect();
        assert_eq!(told, [(table, id.as_str(), column)], "{what}");
        assert_eq!(store.unreadable_of(table), met, "{what}");
        assert!(store.unreadable_named(table, &id).is_some(), "{what}");
        assert!(store.unreadable_named(table, "another").is_none(), "{what}");
        sql(store, format!("UPDATE {table} SET {column} = (SELECT was FROM spare) WHERE {key} = '{id}'"))
            .await;
        sql(store, "DROP TABLE spare".to_owned()).await;
        assert_eq!(list(store).await, before, "{what}");
        store.met.forget();
    }
}

pub(super) async fn a_list_of_all_forgets_what_was_mended(store: &Store) {
    fill(store).await;
    let (one, two) = (volume(1).id, volume(2).id);
    sql(store, "UPDATE volumes SET state = 'x'".to_owned()).await;
    assert_eq!(store.list_volumes().await.unwrap(), []);
    assert_eq!(store.unreadable_of("volumes").all().unwrap().len(), 2);
    let named = store.unreadable_named("volumes", "volume-2").unwrap();
    assert_eq!((named.id.as_str(), named.name.as_deref()), (two.as_str(), Some("volume-2")));
    // The name is not free, and what lies on the host for them is known.
    let again = VolumeRecord { id: VolumeId::from_parts(9, 9), ..volume(2) };
    assert!(matches!(store.insert_volume(&again).await, Err(StoreError::NameTaken)));
    let mut ids = store.volume_ids().await.unwrap();
    ids.sort();
    assert_eq!(ids, [one.clone(), two.clone()]);
    sql(store, format!("UPDATE volumes SET state = 'ready' WHERE id = '{one}'")).await;
    assert!(store.delete_volume(&two).await.unwrap());
    assert_eq!(store.list_volumes().await.unwrap(), [volume(1)]);
    assert!(store.unreadable().is_empty());
    // An id that cannot be read may be that of anything on the host.
    sql(store, format!("UPDATE volumes SET id = 'x' WHERE id = '{one}'")).await;
    assert!(matches!(store.volume_ids().await, Err(StoreError::Corrupt { table: "volumes", .. })));
}

pub(super) async fn looking_one_up_is_no_absence(store: &Store) {
    fill(store).await;
    let corrupt = |found: Result<bool, StoreError>, table: &str| match found {
        Err(StoreError::Corrupt { table: of, .. }) => assert_eq!(of, table),
        other => panic!("{table}: {other:?}"),
    };
    let home = sandbox(1, 1).id;
    for (table, damage) in [
        ("templates", "spec = '{'"),
        ("registries", "updated_ms = -1"),
        ("ssh_keys", "created_ms = -1"),
        ("contexts", "spec = '{'"),
        ("snapshots", "manifest = '{'"),
        ("builds", "spec = '{'"),
        ("execs", "spec = '{'"),
        ("sandboxes", "spec = '{'"),
    ] {
        sql(store, format!("UPDATE {table} SET {damage}")).await;
    }
    corrupt(store.template("a", None).await.map(|one| one.is_some()), "templates");
    corrupt(store.registry("host-1").await.map(|one| one.is_some()), "registries");
    corrupt(store.ssh_key("SHA256:1").await.map(|one| one.is_some()), "ssh_keys");
    let context = ContextId::from_parts(1, 1);
    corrupt(store.context(&home, context.as_str()).await.map(|one| one.is_some()), "contexts");
    let taken = snapshot(1, Purpose::Snapshot).id;
    corrupt(store.snapshot(&taken).await.map(|one| one.is_some()), "snapshots");
    corrupt(store.build(&build(1).id).await.map(|one| one.is_some()), "builds");
    corrupt(store.exec(&exec(&sandbox(1, 1), 1, 1).id).await.map(|one| one.is_some()), "execs");
    corrupt(store.sandbox(&home).await.map(|one| one.is_some()), "sandboxes");
}

pub(super) async fn what_closes_stays_closed(store: &Store) {
    fill(store).await;
    let home = sandbox(1, 1).id;
    store.set_visibility(&home, Some(Visibility::Shared)).await.unwrap();
    let lease = Lease { key: key(1, None).id, holder: "ann".to_owned(), taken_ms: 5, expires_ms: 50 };
    store.put_lease(&home, &lease).await.unwrap();
    sql(store, "UPDATE sandbox_access SET visibility = 'x'".to_owned()).await;
    sql(store, "UPDATE sandbox_leases SET taken_ms = -1".to_owned()).await;
    let granted = key(1, None).id;
    sql(store, format!("UPDATE sandbox_grants SET role = 'x' WHERE key_id = '{granted}'")).await;
    let acl = store.list_access().await.unwrap().remove(&home).unwrap();
    assert_eq!(acl.visibility, Some(Visibility::Private));
    assert_eq!(acl.grants, [(key(2, None).id, Role::Exec)].into(), "an unreadable role is none");
    let held = acl.lease.unwrap();
    assert_eq!((held.key, held.expires_ms), (KeyId::from_parts(0, 0), 50), "nobody's, until it ends");
    sql(store, "UPDATE sandbox_leases SET expires_ms = -1".to_owned()).await;
    let acl = store.list_access().await.unwrap().remove(&home).unwrap();
    assert!(acl.lease.is_some_and(|lease| !lease.has_ended(1 << 40)));
    let tables: Vec<_> = store.unreadable().remembered().iter().map(|row| row.table).collect();
    assert_eq!(tables, ["sandbox_access", "sandbox_grants", "sandbox_leases"]);
    // An older value is not taken for the newest.
    sql(store, "UPDATE secret_versions SET created_ms = -1 WHERE version = 2".to_owned()).await;
    let left: Vec<_> = store.list_secrets().await.unwrap().into_iter().map(|secret| secret.name).collect();
    assert_eq!(left, ["S2"]);
    let secret = store.unreadable_named("secrets", "S1").unwrap();
    assert_eq!((secret.column, secret.of.as_deref()), ("created_ms", Some("")));
    assert!(
        matches!(store.list_sealed().await, Ok(all) if all.len() == 5),
        "the values themselves are whole"
    );
    // It can be deleted, and then its name is free.
    assert!(store.delete_secret(&secret.id.parse().unwrap()).await.unwrap());
    assert!(store.unreadable_of("secrets").is_empty());
}

pub(super) async fn readers_of_events_get_past_them(store: &Store) {
    fill(store).await;
    let talk = session(1, &agent(1, &sandbox(1, 1), "ann-1"), None);
    let said: Vec<NewEvent> =
        (0..5).flat_map(|n| NewEvent::texts(EventKind::Text, &format!("t{n}"))).collect();
    store.append_agent_events(&talk.id, &said, &talk.status, 6).await.unwrap();
    sql(store, "UPDATE agent_events SET data = '{' WHERE number IN (1, 2, 4)".to_owned()).await;
    let numbers = async |after, limit| -> Vec<u64> {
        let events = store.agent_events(&talk.id, after, limit).await.unwrap();
        events.into_iter().map(|event| event.number).collect()
    };
    assert_eq!(numbers(0, 9).await, [3, 5]);
    assert_eq!(numbers(0, 1).await, [3], "two pages without any are passed over");
    assert_eq!(numbers(3, 1).await, [5]);
    assert_eq!(numbers(5, 1).await, [0; 0]);
}

pub(super) async fn rows_without_a_time_are_in_no_page_and_told_of(store: &Store) {
    for n in 1..=4 {
        store.insert_sandbox(&sandbox(n, n)).await.unwrap();
    }
    let (one, two) = (sandbox(1, 1).id, sandbox(2, 2).id);
    sql(store, format!("UPDATE sandboxes SET created_ms = -1 WHERE id IN ('{one}', '{two}')")).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_sandboxes(&SandboxFilter::default(), after.as_ref(), 1).await.unwrap();
        seen.extend(page.items.into_iter().map(|record| record.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, [sandbox(4, 4).id, sandbox(3, 3).id]);
    assert_eq!(store.sandbox_ids().await.unwrap().len(), 4);
    let told = store.unreadable_of("sandboxes");
    let told: Vec<_> = told.all().unwrap().iter().map(|row| row.id.as_str()).collect();
    assert_eq!(told, [one.as_str(), two.as_str()]);
}

/// Somebody logs in although another person's row cannot be read.
pub(super) async fn a_login_needs_no_other_row(store: &Store) {
    let (ann, login) = super::others::person_and_login(1);
    store.log_in(&ann, &login, 3).await.unwrap();
    sql(store, "UPDATE api_keys SET person = '{' WHERE person IS NOT NULL".to_owned()).await;
    let (bob, login) = super::others::person_and_login(5);
    store.log_in(&bob, &login, 3).await.unwrap();
    let mut names: Vec<_> = store.list_keys().await.unwrap().into_iter().map(|key| key.name).collect();
    names.sort();
    assert_eq!(names, ["login 1", "login 5", "person 5"]);
}
