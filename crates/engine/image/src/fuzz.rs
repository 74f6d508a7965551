//! What a registry or an archive may bring, found by coverage: `make fuzz`. Each runs shortly with the other tests, too.

use std::io::Read as _;

use bolero::check;

use crate::challenge::strongest;
use crate::manifest::{Config, Manifest};
use crate::reference::{Reference, local_or_normal};

#[test]
fn manifests_and_configurations() {
    check!().for_each(|bytes: &[u8]| {
        drop(Manifest::parse(bytes));
        drop(Config::parse(bytes));
    });
}

#[test]
fn references_have_one_normal_form() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(reference) = Reference::parse(text) {
            let name = reference.name();
            assert_eq!(Reference::parse(&name).map(|again| again.name()).ok(), Some(name));
        }
        if let Ok(name) = local_or_normal(text) {
            assert_eq!(local_or_normal(&name).ok(), Some(name));
        }
    });
}

#[test]
fn challenges() {
    check!().for_each(|bytes: &[u8]| {
        drop(strongest(std::iter::once(String::from_utf8_lossy(bytes).as_ref())));
    });
}

#[test]
fn packed_bytes() {
    check!().for_each(|bytes: &[u8]| {
        let Ok(reader) = crate::layer::decoder(bytes) else { return };
        drop(std::io::copy(&mut reader.take(1 << 20), &mut std::io::sink()));
    });
}
