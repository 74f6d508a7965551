//! Arguments that concern warm pools.

use atoll_core::pool::PoolSpec;
use clap::{Args, Subcommand};

use crate::units::parse_duration_ms;

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// List pools
    Ls,
    /// Set a pool up, or change its size
    Set {
        #[command(flatten)]
        of: PoolOf,
        /// Replace members that are older than this, such as 1h
        #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
        max_age: Option<u64>,
        /// Kept ready whatever the demand
        min: u32,
        /// Most that are kept ready when demand rises [default: the same]
        max: Option<u32>,
    },
    /// Forget what 'set' said: the template's own size holds again, or there is no pool
    Rm {
        #[command(flatten)]
        of: PoolOf,
    },
}

/// What a pool is of.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PoolOf {
    /// Of the newest version of this template
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Of this image, with default limits
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
}

/// Reads `4` or `2..8`.
pub(crate) fn parse_pool(text: &str) -> Result<PoolSpec, String> {
    let number = |text: &str| {
        text.parse::<u32>().map_err(|_error| format!("'{text}' is not a number: write COUNT or MIN..MAX"))
    };
    match text.split_once("..") {
        None => number(text).map(PoolSpec::fixed),
        Some((min, max)) => Ok(PoolSpec { min: number(min)?, max: number(max)?, max_age_ms: None }),
    }
}

/// Reads `host=4` or `python:3.12=2..8`.
pub(super) fn parse_image_pool(text: &str) -> Result<(String, PoolSpec), String> {
    match text.rsplit_once('=') {
        Some((image, count)) if !image.is_empty() => Ok((image.to_owned(), parse_pool(count)?)),
        _ => Err(format!("'{text}' is not IMAGE=COUNT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_pool("4"), Ok(PoolSpec::fixed(4)));
        assert_eq!(parse_pool("2..8"), Ok(PoolSpec { min: 2, max: 8, max_age_ms: None }));
        for bad in ["", "x", "1..", "..2", "-1", "1...2"] {
            assert!(parse_pool(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_image_pool("a:1=4"), Ok(("a:1".to_owned(), PoolSpec::fixed(4))));
        assert!(parse_image_pool("=4").is_err() && parse_image_pool("host").is_err());
    }
}
