//! What callers may write, found by coverage: `make fuzz`. Each runs shortly with the other tests, too.

use std::net::{IpAddr, Ipv4Addr};

use bolero::check;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::execution::ExecutionPolicy;
use crate::limits::IDEMPOTENCY_KEY_MAX_BYTES;
use crate::policy::{Destination, DomainPattern, EgressPolicy, HostName, Http, PathPattern};
use crate::spec::IdempotencyKey;

/// A value that can be read is written so that it reads the same.
fn read<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(text: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(text).ok()?;
    let again = serde_json::to_vec(&value).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<T>(&again).ok().as_ref(), Some(&value));
    Some(value)
}

#[test]
fn policies_of_the_network() {
    check!().for_each(|text: &[u8]| {
        let Some(policy) = read::<EgressPolicy>(text) else { return };
        if policy.validate("egress").is_err() {
            return;
        }
        let name: HostName = "api.example.com".parse().expect("a name");
        for (name, address, port) in [
            (Some(&name), Ipv4Addr::new(93, 184, 215, 14), 443),
            (None, Ipv4Addr::new(10, 0, 0, 1), 22),
            (Some(&name), Ipv4Addr::new(169, 254, 169, 254), 80),
        ] {
            let to = Destination {
                name,
                address: IpAddr::V4(address),
                port,
                own: false,
                closed: None,
                sender: None,
            };
            let request = policy.decide(&to, Http::Request { method: "GET", path: "/a/../b%2f" });
            let unknown = policy.decide(&to, Http::Unknown);
            // When the connection is refused before there is a request, no request on it would have been allowed.
            assert!(policy.could_allow(&to) || !(request.allowed || unknown.allowed));
            drop((policy.describe(request.basis), policy.describe(unknown.basis)));
        }
    });
}

#[test]
fn policies_of_programs() {
    check!().for_each(|text: &[u8]| {
        if let Some(policy) = read::<ExecutionPolicy>(text) {
            drop(policy.validate("execution"));
        }
    });
}

#[test]
fn names_and_patterns() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(name) = text.parse::<HostName>() {
            assert_eq!(name.as_str().parse::<HostName>().ok(), Some(name));
        }
        drop(text.parse::<DomainPattern>());
        if let Ok(pattern) = text.parse::<PathPattern>() {
            // Whatever the pattern answers for a text, it answers the same again.
            assert_eq!(pattern.matches(text), pattern.matches(text));
        }
    });
}

/// Whatever is stored is read as it was written, and no client's key is one of the server's own.
#[test]
fn idempotency_keys() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        assert_eq!(IdempotencyKey::of_stored(text.to_owned()).to_string(), text);
        let own = IdempotencyKey::server(text);
        assert_eq!((own.as_server(), own.as_client()), (Some(text), None));
        assert_eq!(IdempotencyKey::of_stored(own.to_string()), own);
        let fits = !text.is_empty() && text.len() <= IDEMPOTENCY_KEY_MAX_BYTES;
        let Ok(key) = IdempotencyKey::client(text) else {
            assert!(!fits || text.chars().any(|char| !char.is_ascii_graphic()), "{text:?}");
            return;
        };
        assert!(fits, "{text:?}");
        assert_eq!((key.as_client(), key.as_server()), (Some(text), None));
        let stored = IdempotencyKey::of_stored(key.to_string());
        assert_eq!((stored.as_client(), stored.as_server()), (Some(text), None));
        assert_ne!(stored, own);
    });
}
