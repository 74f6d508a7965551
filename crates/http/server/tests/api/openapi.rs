//! The committed description is the one that the routes make.

#[test]
fn the_committed_document_is_current() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../openapi/atoll.json");
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == atoll_server::openapi(),
        "openapi/atoll.json is not current: run 'cargo run -p atoll-server --example openapi' and review the change"
    );
}

#[test]
fn every_operation_is_described() {
    let document: serde_json::Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("default"), "{method} {path} has no error");
            assert!(responses.values().all(|one| one["description"].is_string()), "{method} {path}");
        }
    }
    assert!(ids.len() > 40, "{ids:?}");
}

#[test]
fn codes_are_those_that_are_sent_and_references_lead_somewhere() {
    let document: serde_json::Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let schemas = &document["components"]["schemas"];
    let codes: Vec<_> = atoll_core::Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(schemas["Code"]["enum"], serde_json::json!(codes));
    let text = document.to_string();
    for rest in text.split("\"#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name} is not described");
    }
}
