//! The events that the gateway hands to the recorder.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use atoll_core::network::Stage;
use atoll_core::policy::EgressPolicy;
use atoll_recorder::event::{Destination, Dns, Http, PolicyDecision};
use atoll_recorder::{Event, What, Witness, fingerprint, now_us};
use hickory_proto::op::Message;
use hickory_proto::rr::RData;

use crate::connection::{Admitted, Connection, Dialer};
use crate::refusal::Refusal;
use crate::sandbox::SandboxNet;

/// Which policy decides now: the same policy has the same number.
#[derive(Debug)]
pub(crate) struct Revision(AtomicU64);

impl Revision {
    pub(crate) fn of(policy: &EgressPolicy) -> Self {
        Self(AtomicU64::new(fingerprint(policy)))
    }

    pub(crate) fn set(&self, policy: &EgressPolicy) {
        self.0.store(fingerprint(policy), Ordering::Relaxed);
    }
}

impl SandboxNet {
    /// Records an event that the gateway saw.
    pub(crate) fn record(&self, what: impl FnOnce() -> What) {
        let Some(recorder) = &self.recorder else { return };
        let (at_us, witness) = (now_us(), Witness::Gateway);
        recorder.record(&self.id, Event { at_us, witness, exec: None, process: None, what: what() });
    }

    /// Records a refusal that was seen `count` times: the first, then each time that it has doubled, so that a program
    /// that tries all day does not fill the journal. A connection that was only observed is recorded each time, like
    /// one that was allowed: each may have another sender.
    pub(crate) fn record_refusal(&self, refusal: &Refusal, count: u64, observed: bool) {
        let each = observed && refusal.stage == Stage::Connect;
        if each || count.is_power_of_two() {
            self.record(|| {
                let stage = serde_json::to_value(refusal.stage).ok();
                let stage = stage.as_ref().and_then(|stage| stage.as_str()).unwrap_or_default().to_owned();
                What::Policy(PolicyDecision {
                    allowed: observed,
                    stage,
                    subject: refusal.what.clone(),
                    rule: if observed { would_be(&refusal.why) } else { refusal.why.clone() },
                    policy_revision: self.revision.0.load(Ordering::Relaxed),
                    times: if each { 1 } else { count - count / 2 },
                    observed,
                    ask: refusal.ask.clone(),
                    to: refusal.to.clone(),
                })
            });
        }
    }

    /// Records that a connection may be made.
    pub(crate) fn record_allowed(
        &self,
        subject: impl FnOnce() -> String,
        rule: impl FnOnce() -> String,
        to: impl FnOnce() -> Destination,
    ) {
        self.record(|| {
            What::Policy(PolicyDecision {
                allowed: true,
                stage: "connect".to_owned(),
                subject: subject(),
                rule: rule(),
                policy_revision: self.revision.0.load(Ordering::Relaxed),
                times: 0,
                to: Some(Box::new(to())),
                ..PolicyDecision::default()
            })
        });
    }

    /// Records a question to the resolver with its answer.
    pub(crate) fn record_dns(&self, asked: &Message, answer: &Message, observed: bool) {
        let [query] = asked.queries.as_slice() else { return };
        self.record(|| {
            let address = |data: &RData| match data {
                RData::A(a) => Some(IpAddr::V4(a.0)),
                RData::AAAA(a) => Some(IpAddr::V6(a.0)),
                _ => None,
            };
            What::Dns(Dns {
                name: query.name.to_ascii().trim_end_matches('.').to_owned(),
                record: query.query_type.to_string(),
                answer: format!("{:?}", answer.metadata.response_code).to_ascii_uppercase(),
                addresses: answer.answers.iter().filter_map(|record| address(&record.data)).collect(),
                observed,
            })
        });
    }

    /// Records the end of a connection that led somewhere.
    pub(crate) fn record_end(&self, connection: &Connection) {
        if self.recorder.is_some()
            && let Some(ended) = connection.ended()
        {
            self.record(|| What::Connection(ended));
        }
    }
}

/// The reason of a refusal that was none, because the policy only observes.
pub(crate) fn would_be(why: &str) -> String {
    format!("would be refused: {why}")
}

/// The course of a request that was admitted; recorded when it is over.
#[derive(Debug)]
pub(crate) struct Exchange {
    began: Instant,
    http: Mutex<Http>,
}

impl Exchange {
    pub(crate) fn new(dialer: &Dialer, scheme: &str, method: &str, path: &str, rule: String) -> Self {
        let target = &dialer.target;
        let host = match &*target.names {
            [name] => name.to_string(),
            _ => target.address.ip().to_string(),
        };
        let http = Http {
            connection: dialer.context.connection.number,
            method: method.to_owned(),
            scheme: scheme.to_owned(),
            host,
            port: target.address.port(),
            path: path.to_owned(),
            rule,
            to: Some(Box::new(Destination { tls: scheme == "https", ..target.recorded() })),
            ..Http::default()
        };
        Self { began: Instant::now(), http: Mutex::new(http) }
    }

    /// The same, which passed against the rules.
    pub(crate) fn observed(self) -> Self {
        self.change(|http| http.observed = true);
        self
    }

    fn change(&self, change: impl FnOnce(&mut Http)) {
        change(&mut self.http.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn record(&self, net: &SandboxNet) {
        let duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.change(|http| net.record(|| What::Http(Http { duration_us, ..std::mem::take(http) })));
    }
}

impl Admitted {
    /// The server has answered; `sent_bytes` is the stated length of the request's body.
    pub(crate) fn answered(&self, status: u16, sent_bytes: u64) {
        self.exchange.change(|http| {
            http.status = Some(status);
            http.sent_bytes = sent_bytes;
            http.latency_us = u64::try_from(self.exchange.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        });
    }

    /// Part of the answer was passed on.
    pub(crate) fn passed(&self, bytes: usize) {
        self.exchange.change(|http| http.received_bytes = http.received_bytes.saturating_add(bytes as u64));
    }

    /// A secret was put in.
    pub(crate) fn used(&self, secret: &str) {
        self.exchange.change(|http| http.secrets.push(secret.to_owned()));
    }
}
