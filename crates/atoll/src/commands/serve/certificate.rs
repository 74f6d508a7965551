//! Certificates of the port: from files, of the server's own authority, or from a server of ACME.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_acme::{Acme, AcmeConfig, ExternalAccount, Proof};
use atoll_core::Code;
use atoll_engine::Engine;
use atoll_tls::{Authority, Tls};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::{AcmeArgs, LOCALHOST, ServeArgs, parse_domain};
use crate::config;
use crate::failure::{Failure, Result, chain};

/// The names for which the server's own authority signs certificates.
pub(super) fn own_names(args: &ServeArgs) -> Vec<String> {
    let mut all = super::settings::names(args);
    all.extend([LOCALHOST.to_owned(), format!("*.{LOCALHOST}")]);
    if args.domain != LOCALHOST {
        all.push(format!("*.{}", args.domain));
    }
    all
}

/// How the port speaks TLS, if it does.
pub(super) fn tls(
    args: &ServeArgs,
    authority: Option<Authority>,
    acme: Option<&Running>,
) -> Result<Option<Tls>> {
    if let Some(authority) = authority {
        return Ok(Some(match acme {
            Some(acme) => Tls::issued(authority, acme.issued()),
            None => Tls::own(authority),
        }));
    }
    let Some((certificate, key)) = args.tls.tls_cert.as_ref().zip(args.tls.tls_key.as_ref()) else {
        return Ok(None);
    };
    let tls = Tls::from_files(certificate, key).map_err(|error| {
        Failure::plain(Code::InvalidArgument, format!("--tls-cert, --tls-key: {}", chain(&error)))
    })?;
    Ok(Some(tls))
}

/// The parts that run beside the server.
#[derive(Debug)]
pub(super) struct Running {
    acme: Arc<Acme>,
    listener: Option<TcpListener>,
}

/// Opens the port for challenges, if there is to be one.
pub(super) async fn listen(args: &ServeArgs) -> Result<Option<TcpListener>> {
    let acme = &args.acme;
    if !acme.acme {
        return Ok(None);
    }
    if args.domain == LOCALHOST {
        return Err(Failure::Usage(
            "--acme: give the name that the certificate is for, --domain NAME".to_owned(),
        ));
    }
    match acme.acme_dns_hook {
        Some(_) => Ok(None),
        None => super::listen(acme.acme_http_listen, &args.data_dir).await.map(Some),
    }
}

/// The names that a certificate is ordered for. Nodes that were given the same names of `--host`, in whichever order,
/// order the same certificate.
fn names(args: &ServeArgs) -> Vec<String> {
    let domain = &args.domain;
    let mut names = vec![domain.clone()];
    if args.acme.acme_dns_hook.is_some() {
        names.push(format!("*.{domain}"));
    } else {
        // Those that are known before there is a sandbox.
        names.push(format!("api.{domain}"));
        if !args.no_dashboard {
            names.push(format!("console.{domain}"));
        }
    }
    let hosts: BTreeSet<_> = args.host.iter().filter_map(|host| orderable(host)).collect();
    // Let's Encrypt refuses an order for a name and for all names beside it.
    let covered = |names: &[String], host: &str| {
        let beside = host.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        names.iter().any(|name| name == host || Some(name) == beside.as_ref())
    };
    for host in hosts {
        if !covered(&names, &host) {
            names.push(host);
        }
    }
    names
}

/// A name of `--host` as a server of ACME can be asked for it; `None` for an address, and for a name that only this host or its
/// network knows.
fn orderable(host: &str) -> Option<String> {
    let name = parse_domain(host).ok()?;
    let is_local = !name.contains('.') || name.ends_with(&format!(".{LOCALHOST}"));
    (!is_local && name.parse::<IpAddr>().is_err()).then_some(name)
}

/// Says which names clients cannot use with this certificate.
fn say_what_is_left_out(args: &ServeArgs) {
    if args.acme.acme_dns_hook.is_none() {
        tracing::info!("names of ports of sandboxes have no certificate: that takes --acme-dns-hook");
    }
    let left: Vec<_> =
        args.host.iter().map(String::as_str).filter(|host| orderable(host).is_none()).collect();
    if !left.is_empty() {
        tracing::info!(
            names = left.join(" "),
            "names of --host have no certificate of the server of ACME: they are no names of a domain; clients are shown \
             one of this server's own authority ('atoll ca')"
        );
    }
}

/// Takes up what is known of the certificate.
pub(super) async fn open(
    engine: &Engine,
    args: &ServeArgs,
    listener: Option<TcpListener>,
) -> Result<Option<Running>> {
    let acme: &AcmeArgs = &args.acme;
    if !acme.acme {
        return Ok(None);
    }
    let extra_ca = acme.acme_ca.as_ref().map(|path| {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))
    });
    let external = acme.acme_eab_kid.as_ref().zip(acme.acme_eab_key_file.as_ref());
    let external = external
        .map(|(kid, path)| config::secret_file(path).map(|key| ExternalAccount { kid: kid.clone(), key }));
    let proof = match &acme.acme_dns_hook {
        None => Proof::Http,
        Some(hook) => Proof::Dns {
            hook: std::path::absolute(hook)
                .map_err(|error| Failure::io(format!("cannot find {}", hook.display()), error))?,
            wait: Duration::from_millis(acme.acme_dns_wait),
        },
    };
    let config = AcmeConfig {
        directory: acme.acme_directory.clone(),
        extra_ca: extra_ca.transpose()?,
        email: acme.acme_email.clone(),
        external: external.transpose()?,
        domain: args.domain.clone(),
        names: names(args),
        proof,
    };
    let acme = Acme::open(engine, config).await.map_err(Failure::Plain)?;
    say_what_is_left_out(args);
    Ok(Some(Running { acme: Arc::new(acme), listener }))
}

impl Running {
    /// Where the certificate is put.
    pub(super) fn issued(&self) -> Arc<atoll_tls::Issued> {
        self.acme.issued()
    }

    /// Keeps it new, and answers challenges, until the server stops.
    pub(super) async fn run(self, https_port: u16, stop: CancellationToken) {
        let Self { acme, listener } = self;
        let door = async {
            if let Some(listener) = listener {
                acme.serve_challenges(listener, https_port, stop.clone()).await;
            }
        };
        tokio::join!(acme.run(stop.clone()), door);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn names_of(more: &[&str]) -> Vec<String> {
        let begin = ["atoll", "serve", "--acme", "--acme-agree-tos", "--domain", "boxes.test"];
        let cli = Cli::try_parse_from(begin.iter().chain(more).copied()).unwrap();
        let Command::Serve(args) = cli.command else { panic!("it is another command") };
        names(&args)
    }

    #[test]
    fn a_certificate_is_for_the_domain_and_for_further_names() {
        let known = ["boxes.test", "api.boxes.test", "console.boxes.test"];
        assert_eq!(names_of(&[]), known);
        assert_eq!(names_of(&["--no-dashboard"]), known[..2]);
        let both = names_of(&["--host", "B.example", "--host", "a.example", "--host", "api.boxes.test"]);
        assert_eq!(both, [&known[..], &["a.example", "b.example"]].concat());
        assert_eq!(both, names_of(&["--host", "a.example", "--host", "b.example"]), "in whichever order");
    }

    #[test]
    fn what_a_wildcard_is_for_is_not_ordered_twice() {
        let hook = ["--acme-dns-hook", "/bin/true"];
        let with = |more: &[&str]| names_of(&[&hook[..], more].concat());
        assert_eq!(with(&[]), ["boxes.test", "*.boxes.test"]);
        let hosts = ["--host", "one.boxes.test", "--host", "two.of.boxes.test", "--host", "boxes.test"];
        assert_eq!(with(&hosts), ["boxes.test", "*.boxes.test", "two.of.boxes.test"]);
    }

    #[test]
    fn no_certificate_is_ordered_for_what_is_no_name_of_a_domain() {
        for host in
            ["192.0.2.1", "[2001:db8::1]", "machine", "localhost", "a.localhost", "a_b.example", "a.example."]
        {
            assert_eq!(names_of(&["--host", host]).len(), 3, "{host}");
        }
    }
}
