//! Arguments for a certificate from a server of ACME.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::units::parse_duration_ms;

/// A certificate from a server of ACME.
#[derive(Debug, Args)]
pub(crate) struct AcmeArgs {
    /// Speak TLS with a certificate of Let's Encrypt, or another server of ACME, got and renewed by itself: for --domain and
    /// each --host, and with --acme-dns-hook for all names below --domain, as ports of sandboxes have
    #[arg(long, requires = "acme_agree_tos")]
    pub(crate) acme: bool,
    /// You have read the terms of service of that server of ACME, and agree
    #[arg(long, requires = "acme")]
    pub(crate) acme_agree_tos: bool,
    /// Where it may write to you
    #[arg(long, value_name = "EMAIL", requires = "acme", value_parser = parse_email)]
    pub(crate) acme_email: Option<String>,
    /// Its directory
    #[arg(long, value_name = "URL", requires = "acme", value_parser = parse_directory)]
    #[arg(default_value = "https://acme-v02.api.letsencrypt.org/directory")]
    pub(crate) acme_directory: String,
    /// Authority to be trusted for that, besides the host's, PEM
    #[arg(long, value_name = "FILE", requires = "acme")]
    pub(crate) acme_ca: Option<PathBuf>,
    /// Address and port for challenges over HTTP, which come to port 80 of --domain; everything else that comes there is sent to
    /// https://
    #[arg(
        long,
        value_name = "ADDR",
        requires = "acme",
        conflicts_with = "acme_dns_hook",
        default_value = "[::]:80"
    )]
    pub(crate) acme_http_listen: SocketAddr,
    /// Answer challenges by records of the domain, which this program makes and removes: PROGRAM present|cleanup NAME VALUE
    #[arg(long, value_name = "PROGRAM", requires = "acme")]
    pub(crate) acme_dns_hook: Option<PathBuf>,
    /// How long after that records can be seen from everywhere
    #[arg(long, value_name = "DURATION", requires = "acme_dns_hook", value_parser = parse_dns_wait_ms, default_value = "1m")]
    pub(crate) acme_dns_wait: u64,
    /// Id of an account elsewhere that the one at the server of ACME belongs to
    #[arg(long, value_name = "ID", requires_all = ["acme", "acme_eab_key_file"])]
    pub(crate) acme_eab_kid: Option<String>,
    /// File with its key, in base64url
    #[arg(long, value_name = "FILE", requires = "acme_eab_kid")]
    pub(crate) acme_eab_key_file: Option<PathBuf>,
}

fn parse_email(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"<>,;:\"\\".contains(&byte);
    match text.split_once('@') {
        Some((name, host))
            if !name.is_empty() && !host.is_empty() && text.len() <= 254 && text.bytes().all(plain) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("write NAME@HOST".to_owned()),
    }
}

fn parse_directory(text: &str) -> Result<String, String> {
    let plain = text.len() <= 2048 && text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.strip_prefix("https://") {
        Some(rest) if plain && !rest.is_empty() && !rest.starts_with('/') => Ok(text.to_owned()),
        _ => Err("write an address that begins with https://".to_owned()),
    }
}

fn parse_dns_wait_ms(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text)?;
    if ms <= 600_000 { Ok(ms) } else { Err("must be at most 10m".to_owned()) }
}
