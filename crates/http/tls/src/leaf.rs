//! Reads the names and the time of a certificate.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use crate::TlsError;

/// Most names that are read of one certificate.
const NAMES_MAX_COUNT: usize = 1000;

/// What a certificate is for, and how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// DNS names, in lower case; `*.` before one stands for all names one label below it.
    pub names: Vec<String>,
    /// From when it is good, seconds since the epoch.
    pub from_s: u64,
    /// Until when.
    pub until_s: u64,
}

impl Leaf {
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let broken = || TlsError::Pem("the chain".to_owned());
        let (_rest, parsed) = X509Certificate::from_der(certificate).map_err(|_broken| broken())?;
        let names = parsed.subject_alternative_name().map_err(|_broken| broken())?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let names = names.iter().take(NAMES_MAX_COUNT).filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        Ok(Self {
            names: names.collect(),
            from_s: seconds(parsed.validity().not_before),
            until_s: seconds(parsed.validity().not_after),
        })
    }

    /// Whether it is for this name.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let parent = name.split_once('.').map(|(_label, parent)| parent);
        self.names.iter().any(|own| match own.strip_prefix("*.") {
            Some(above) => parent == Some(above),
            None => *own == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_label() {
        let names = vec!["boxes.test".to_owned(), "*.boxes.test".to_owned()];
        let leaf = Leaf { names, from_s: 0, until_s: 0 };
        for name in ["boxes.test", "BOXES.test", "8000-web.boxes.test"] {
            assert!(leaf.covers(name), "{name}");
        }
        for name in ["test", "a.b.boxes.test", "xboxes.test", "localhost", "", "*.other.test"] {
            assert!(!leaf.covers(name), "{name}");
        }
    }
}
