//! What an address says of the sandboxes of a session: `/mcp?template=code&internet=off`.
//!
//! The address stands in the configuration of a client, as its key does: the user who writes it may do all that the key
//! may. The model does not see it.

use atoll_api::CreateSandbox;
use atoll_core::policy::{EgressPolicy, Internet};
use atoll_core::spec::IsolationLevel;
use atoll_core::{Error, Result};
use axum::extract::Query;
use http::Uri;
use serde::Deserialize;

use crate::session::{ABANDONED_AFTER_MS, Preset, SANDBOXES_MAX_COUNT};

/// Longest query, bytes.
const QUERY_MAX_BYTES: usize = 1024;
/// Most sandboxes that an address may ask for.
const LIMIT_MAX_COUNT: usize = 64;

/// The words of the query.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Words {
    template: Option<String>,
    image: Option<String>,
    isolation: Option<IsolationLevel>,
    internet: Option<Internet>,
    /// Sandboxes that are there, separated by commas.
    sandbox: Option<String>,
    max_sandboxes: Option<usize>,
    keep: bool,
}

/// The preset of an address.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`].
pub(crate) fn preset(uri: &Uri) -> Result<Preset> {
    let hint = "known are template, image, isolation, internet (on or off), sandbox, max_sandboxes and keep";
    if uri.query().unwrap_or_default().len() > QUERY_MAX_BYTES {
        return Err(Error::invalid("query", format_args!("must be at most {QUERY_MAX_BYTES} bytes")));
    }
    let Query(words) = Query::<Words>::try_from_uri(uri)
        .map_err(|error| Error::invalid("query", error.body_text()).hint(hint))?;
    let max_sandboxes = words.max_sandboxes.unwrap_or(SANDBOXES_MAX_COUNT);
    if !(1..=LIMIT_MAX_COUNT).contains(&max_sandboxes) {
        return Err(Error::invalid("max_sandboxes", format_args!("must be from 1 to {LIMIT_MAX_COUNT}")));
    }
    let egress = match words.internet {
        None => None,
        Some(Internet::Rules) => {
            let why = "must be on or off: an address has no rules";
            return Err(Error::invalid("internet", why).hint("name a template that has them"));
        }
        Some(internet) => Some(EgressPolicy { internet, ..EgressPolicy::default() }),
    };
    let sandbox = CreateSandbox {
        template: words.template,
        image: words.image,
        isolation: words.isolation,
        egress,
        idle_timeout_ms: (!words.keep).then_some(ABANDONED_AFTER_MS),
        ..CreateSandbox::default()
    };
    let given = words.sandbox.unwrap_or_default();
    let given = given.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Ok(Preset { sandbox, given, max_sandboxes, keep: words.keep })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Result<Preset> {
        preset(&format!("/mcp{query}").parse().unwrap())
    }

    #[test]
    fn says_what_sandboxes_are_made_of() {
        let preset = of("?template=code&isolation=gvisor&internet=off&sandbox=a,b&max_sandboxes=2").unwrap();
        assert_eq!(preset.sandbox.template.as_deref(), Some("code"));
        assert_eq!(preset.sandbox.isolation, Some(IsolationLevel::Gvisor));
        assert_eq!(preset.sandbox.egress.unwrap().internet, Internet::Off);
        assert_eq!(
            (preset.given, preset.max_sandboxes, preset.keep),
            (vec!["a".into(), "b".into()], 2, false)
        );
        assert_eq!(preset.sandbox.idle_timeout_ms, Some(ABANDONED_AFTER_MS));
        assert_eq!(of("?keep=true").unwrap().sandbox.idle_timeout_ms, None);
        assert_eq!(of("").unwrap().max_sandboxes, SANDBOXES_MAX_COUNT);
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        let long = format!("?template={}", "x".repeat(QUERY_MAX_BYTES));
        for bad in
            ["?tempate=x", "?internet=rules", "?max_sandboxes=0", "?max_sandboxes=65", "?keep=yes", &long]
        {
            assert_eq!(of(bad).unwrap_err().code, atoll_core::Code::InvalidArgument, "{bad}");
        }
    }
}
