//! What must hold for services.

use atoll_core::build::CommandText;
use atoll_core::id::ServiceId;
use atoll_core::service::{Restart, ServiceSpec, ServiceStatus};
use atoll_core::spec::IdempotencyKey;

use crate::{ServiceRecord, Store, StoreError};

pub(super) async fn life(store: &Store) {
    let (one, two) = (super::sandbox(1, 1), super::sandbox(2, 2));
    store.insert_sandbox(&one).await.unwrap();
    store.insert_sandbox(&two).await.unwrap();
    let service = |n: u8, sandbox: &crate::SandboxRecord, name: &str| ServiceRecord {
        id: ServiceId::from_parts(n.into(), n.into()),
        sandbox: sandbox.id.clone(),
        name: name.to_owned(),
        spec: ServiceSpec {
            restart: Restart::OnFailure,
            ..ServiceSpec::new(CommandText::Shell("écho 'x'".to_owned()))
        },
        status: ServiceStatus::default(),
        created_ms: n.into(),
    };
    let mut all = [service(1, &one, "web"), service(2, &one, "db"), service(3, &two, "web")];
    for record in &all {
        store.insert_service(record).await.unwrap();
    }
    assert_eq!(store.list_services().await.unwrap(), all);
    let again = store.insert_service(&service(4, &one, "web")).await;
    assert!(matches!(again, Err(StoreError::NameTaken)));
    let nowhere = store.insert_service(&service(5, &super::sandbox(9, 9), "web")).await;
    assert!(matches!(nowhere, Err(StoreError::NotFound)));
    all[0].status.begin_run("b");
    all[0].status.end_run(1 << 40);
    assert!(store.set_service_status(&all[0].id, &all[0].status).await.unwrap());
    assert_eq!(store.list_services().await.unwrap(), all);
    assert!(store.delete_service(&all[1].id).await.unwrap());
    assert!(!store.delete_service(&all[1].id).await.unwrap());
    assert!(!store.set_service_status(&all[1].id, &all[1].status).await.unwrap());
    assert!(store.delete_sandbox(&two.id).await.unwrap());
    assert_eq!(store.list_services().await.unwrap(), all[..1], "they go with their sandbox");
    let three = super::sandbox(3, 3);
    let begins = [service(6, &three, "web"), service(7, &three, "db")];
    store.insert_sandbox_with(&three, None, None, &begins).await.unwrap();
    assert_eq!(store.list_services().await.unwrap()[1..], begins, "or come with it");

    // A start command that an earlier version of the server ran as an exec alone.
    let mut exec = super::exec(&three, 1, 1);
    exec.idempotency_key = Some(IdempotencyKey::client("atoll-start-b").unwrap());
    store.insert_exec(&exec).await.unwrap();
    let start = service(8, &three, "start");
    let its_run = IdempotencyKey::server("its run");
    for _ in 0..2 {
        store.adopt_start(&start, "atoll-start-b", &its_run).await.unwrap();
    }
    assert_eq!(store.list_services().await.unwrap().last(), Some(&start));
    let found = store.exec_by_key(&three.id, &its_run).await.unwrap().unwrap();
    assert_eq!(found.id, exec.id);
}
