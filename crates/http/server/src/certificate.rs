//! Reports on the certificate of the server's port.

use atoll_isolation::{Check, Status};
use atoll_tls::{Certificate, Leaf, Tls};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Part of a certificate's life after which one that comes from files should have been renewed: the last sixth.
const LATE_PARTS: u64 = 6;

/// The line of the report; none when there is no certificate from elsewhere.
pub(crate) fn check(tls: &Tls, now_ms: u64) -> Option<Check> {
    let Certificate { is_ordered, leaf, failure } = tls.certificate()?;
    let now_s = now_ms / 1000;
    let why = failure.map(|failure| format!("; the last order failed: {failure}"));
    let is_failing = why.is_some();
    let why = why.unwrap_or_default();
    let hint = if is_ordered {
        "it is ordered again by itself: at once when the server is started anew, unless there were four orders in an hour"
    } else {
        "renew the files of --tls-cert and --tls-key: they are read again by themselves"
    };
    let (status, detail) = match leaf {
        None if is_ordered => (
            Status::Missing,
            format!("there is none yet, and clients are shown one of this server's own authority{why}"),
        ),
        None => (Status::Limited, "until when it is good cannot be read".to_owned()),
        Some(leaf) if leaf.until_s <= now_s => (Status::Missing, format!("it has ended{why}")),
        Some(leaf) => {
            let left_s = leaf.until_s - now_s;
            let is_late = !is_ordered && left_s < life_s(&leaf) / LATE_PARTS;
            let status = if is_failing || is_late { Status::Limited } else { Status::Ok };
            (status, format!("for {}, good for {}{why}", leaf.names.join(", "), span(left_s)))
        }
    };
    let check = Check::new("certificate", status, detail);
    Some(if status == Status::Ok { check } else { check.hint(hint) })
}

fn life_s(leaf: &Leaf) -> u64 {
    leaf.until_s.saturating_sub(leaf.from_s)
}

fn span(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} more minutes", seconds / 60),
        7_200..172_800 => format!("{} more hours", seconds / 3_600),
        _ => format!("{} more days", seconds / 86_400),
    }
}

/// The same for Prometheus.
#[derive(Debug, Default)]
pub(crate) struct CertificateMetrics {
    end: Gauge,
    failed: Gauge,
}

impl CertificateMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let made = Self::default();
        registry.register_with_unit(
            "certificate_end",
            "When the certificate of the port ends, since the epoch; 0 when it is of the server's own authority, or none",
            Unit::Seconds,
            made.end.clone(),
        );
        let failed = made.failed.clone();
        registry.register(
            "certificate_order_failed",
            "1 while the last order of a certificate failed",
            failed,
        );
        made
    }

    pub(crate) fn set(&self, tls: Option<&Tls>) {
        let certificate = tls.and_then(Tls::certificate);
        let leaf = certificate.as_ref().and_then(|certificate| certificate.leaf.as_ref());
        self.end.set(leaf.map_or(0, |leaf| i64::try_from(leaf.until_s).unwrap_or(i64::MAX)));
        self.failed.set(certificate.is_some_and(|certificate| certificate.failure.is_some()).into());
    }
}
