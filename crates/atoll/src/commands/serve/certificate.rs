//! Certificates of the port: from files, of the server's own authority, or from a server of ACME.

use std::sync::Arc;
use std::time::Duration;

use atoll_acme::{Acme, AcmeConfig, ExternalAccount, Proof};
use atoll_core::Code;
use atoll_engine::Engine;
use atoll_tls::{Authority, Tls};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::{AcmeArgs, LOCALHOST, ServeArgs};
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

/// The names for which a certificate can be had.
fn names(args: &ServeArgs) -> Vec<String> {
    let domain = &args.domain;
    if args.acme.acme_dns_hook.is_some() {
        return vec![domain.clone(), format!("*.{domain}")];
    }
    // Those that are known before there is a sandbox.
    let mut names = vec![domain.clone(), format!("api.{domain}")];
    if !args.no_dashboard {
        names.push(format!("console.{domain}"));
    }
    names
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
    if listener.is_some() {
        tracing::info!("names of ports of sandboxes have no certificate: that takes --acme-dns-hook");
    }
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
