//! One sandbox's network: its policy, its open connections, its refusals, its counts of bytes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::id::SandboxId;
use atoll_core::policy::{EgressPolicy, HostName, Internet};
use atoll_recorder::Recorder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::bucket::Bucket;
use crate::budget::Budget;
use crate::connection::Connection;
use crate::limits::{
    CLOSED_CONNECTIONS_MAX_COUNT, DENIALS_LOGGED_BURST_S, DENIALS_LOGGED_PER_S, DENIALS_MAX_COUNT,
    DENIALS_SHOWN_MAX_COUNT, DESTINATIONS_MAX_COUNT, DNS_BURST_S, DNS_LOOKUPS_PER_S, DNS_QUESTIONS_PER_S,
    DNS_RECEIVED_BURST_COUNT, DNS_RECEIVED_PER_S, DNS_WAITING_MAX_COUNT, HANDSHAKE_TURN, HANDSHAKES_BURST_S,
    HANDSHAKES_PER_S, INTERCEPTED_MAX_COUNT, OPENED_BURST_S, OPENED_PER_S,
};
use crate::names::Names;
use crate::refusal::{Refusal, explain};
use crate::trace::Revision;
use atoll_core::network::{DenialView, NetworkView, Stage, TotalView, Transferred};

/// Where bytes beyond [`DESTINATIONS_MAX_COUNT`] are counted.
const OTHERS: &str = "(others)";

/// Bytes in both directions.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) connections: AtomicU64,
}

impl Meter {
    pub(crate) fn read(&self) -> Transferred {
        Transferred {
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
        }
    }
}

/// The network of one sandbox while it is taken up.
#[derive(Debug)]
pub(crate) struct SandboxNet {
    pub(crate) id: SandboxId,
    policy: Mutex<Arc<EgressPolicy>>,
    names: Mutex<Names>,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next_number: AtomicU64,
    denials: Mutex<VecDeque<DenialView>>,
    /// All refusals, also those that are no longer remembered.
    pub(crate) denied: AtomicU64,
    pub(crate) total: Meter,
    totals: Mutex<BTreeMap<String, Arc<Meter>>>,
    /// Bandwidth out of the sandbox.
    pub(crate) up: Bucket,
    /// Bandwidth into the sandbox.
    pub(crate) down: Bucket,
    /// Questions to the resolver that are looked at, those that are answered, and those that are passed on.
    pub(crate) received: Bucket,
    pub(crate) questions: Bucket,
    pub(crate) lookups: Bucket,
    pub(crate) dns_waiting: Semaphore,
    /// New connections.
    opened: Bucket,
    /// TLS handshakes of the gateway, and connections that it looks into.
    handshakes: Bucket,
    intercepted: Arc<Semaphore>,
    /// Bytes on their way.
    pub(crate) budget: Arc<Budget>,
    /// Lines in the server's log.
    logged: Bucket,
    /// The recorder, which is told of everything.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) revision: Revision,
    /// Fires when the sandbox is let go of.
    pub(crate) closed: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl SandboxNet {
    pub(crate) fn new(id: SandboxId, policy: EgressPolicy, total: Transferred, budget: Arc<Budget>) -> Self {
        let rate = policy.limits.bytes_per_s;
        let meter = Meter::default();
        meter.sent.store(total.sent_bytes, Ordering::Relaxed);
        meter.received.store(total.received_bytes, Ordering::Relaxed);
        Self {
            id,
            up: Bucket::new(rate, burst(rate)),
            down: Bucket::new(rate, burst(rate)),
            received: Bucket::new(Some(DNS_RECEIVED_PER_S), DNS_RECEIVED_BURST_COUNT),
            questions: Bucket::new(Some(DNS_QUESTIONS_PER_S), DNS_QUESTIONS_PER_S * DNS_BURST_S),
            lookups: Bucket::new(Some(DNS_LOOKUPS_PER_S), DNS_LOOKUPS_PER_S * DNS_BURST_S),
            dns_waiting: Semaphore::new(DNS_WAITING_MAX_COUNT),
            opened: Bucket::new(Some(OPENED_PER_S), OPENED_PER_S * OPENED_BURST_S),
            handshakes: Bucket::new(Some(HANDSHAKES_PER_S), HANDSHAKES_PER_S * HANDSHAKES_BURST_S),
            intercepted: Arc::new(Semaphore::new(INTERCEPTED_MAX_COUNT)),
            budget,
            logged: Bucket::new(Some(DENIALS_LOGGED_PER_S), DENIALS_LOGGED_PER_S * DENIALS_LOGGED_BURST_S),
            recorder: None,
            revision: Revision::of(&policy),
            policy: Mutex::new(Arc::new(policy)),
            names: Mutex::default(),
            open: Mutex::default(),
            next_number: AtomicU64::new(1),
            denials: Mutex::default(),
            denied: AtomicU64::new(0),
            total: meter,
            totals: Mutex::default(),
            closed: CancellationToken::new(),
        }
    }

    /// The same, which tells the recorder of events.
    pub(crate) fn told_to(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// The policy as it is now.
    pub(crate) fn policy(&self) -> Arc<EgressPolicy> {
        Arc::clone(&lock(&self.policy))
    }

    /// Changes the policy and cuts what it no longer allows.
    ///
    /// A connection enters its activity before it asks the policy; so either it sees the new policy, or it is found
    /// here.
    pub(crate) fn set_policy(&self, policy: EgressPolicy) {
        self.revision.set(&policy);
        let policy = Arc::new(policy);
        *lock(&self.policy) = Arc::clone(&policy);
        let rate = policy.limits.bytes_per_s;
        self.up.set(rate, burst(rate));
        self.down.set(rate, burst(rate));
        for connection in lock(&self.open).values() {
            if !connection.is_allowed(&policy) {
                connection.cancel.cancel();
            }
        }
    }

    // === names ===

    pub(crate) fn learn(&self, name: &HostName, addresses: &[IpAddr], ttl: Duration) {
        lock(&self.names).learn(name, addresses, ttl);
    }

    /// Whether our resolver told this sandbox that the name has the address.
    pub(crate) fn is_name_of(&self, name: &HostName, address: IpAddr) -> bool {
        lock(&self.names).is(name, address)
    }

    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<HostName> {
        lock(&self.names).of(address)
    }

    // === connections ===

    /// Enters a connection, if there is room. `most` is the part of all connections that one sandbox may have.
    pub(crate) fn enter(&self, what: &str, most: usize) -> Result<Arc<Connection>, Refusal> {
        let refuse = |why: String, ask: Option<&str>| {
            // Without the destination: a program that opens many connections is told once, and not for each of them.
            let what = if ask.is_some() { what } else { "connections" }.to_owned();
            Err(Refusal { stage: Stage::Limit, what, why, ask: ask.map(str::to_owned), to: None })
        };
        if !self.opened.take() {
            return refuse(format!("more than {OPENED_PER_S} new connections a second"), None);
        }
        let policy = self.policy();
        let own = usize::try_from(policy.limits.connections()).unwrap_or(usize::MAX);
        let max = match policy.internet {
            Internet::Off => own.min(most).min(CLOSED_CONNECTIONS_MAX_COUNT),
            Internet::On | Internet::Rules => own.min(most),
        };
        let mut open = lock(&self.open);
        if open.len() >= max {
            let ask = (max == own).then_some("--connections");
            return refuse(format!("{max} connections are open already"), ask);
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(number, self.closed.child_token()));
        open.insert(number, Arc::clone(&connection));
        Ok(connection)
    }

    /// Waits for a turn to do a TLS handshake for this sandbox, on one of the connections that may be looked into. The
    /// caller keeps the permit for as long as it looks into the connection.
    pub(crate) async fn begin_interception(&self, what: String) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = Arc::clone(&self.intercepted).try_acquire_owned().map_err(|_full| Refusal {
            stage: Stage::Limit,
            what,
            why: format!("{INTERCEPTED_MAX_COUNT} connections are looked into already"),
            ask: None,
            to: None,
        })?;
        while !self.handshakes.take() {
            tokio::time::sleep(HANDSHAKE_TURN).await;
        }
        Ok(place)
    }

    pub(crate) fn leave(&self, number: u64) {
        let left = lock(&self.open).remove(&number);
        if let Some(connection) = left {
            self.record_end(&connection);
        }
    }

    pub(crate) fn open_count(&self) -> usize {
        lock(&self.open).len()
    }

    /// Where bytes to a destination are counted.
    pub(crate) fn meter(&self, destination: &str) -> Arc<Meter> {
        let mut totals = lock(&self.totals);
        let known = totals.len() < DESTINATIONS_MAX_COUNT || totals.contains_key(destination);
        let key = if known { destination } else { OTHERS };
        Arc::clone(totals.entry(key.to_owned()).or_default())
    }

    // === refusals ===

    /// Writes a refusal down.
    pub(crate) fn deny(&self, refusal: &Refusal) {
        self.denied.fetch_add(1, Ordering::Relaxed);
        self.note(refusal, false);
    }

    /// Records a refusal by rules that passes all the same, because the policy's mode is to observe.
    pub(crate) fn observe(&self, refusal: &Refusal) {
        self.note(refusal, true);
    }

    fn note(&self, refusal: &Refusal, observed: bool) {
        let now = now_ms();
        let mut denials = lock(&self.denials);
        let same = |d: &DenialView| {
            d.stage == refusal.stage
                && d.what == refusal.what
                && d.why == refusal.why
                && d.observed == observed
        };
        if let Some(at) = denials.iter().position(same)
            && let Some(mut denial) = denials.remove(at)
        {
            denial.count += 1;
            denial.last_at_ms = now;
            self.record_refusal(refusal, denial.count, observed);
            denials.push_front(denial);
            return;
        }
        self.record_refusal(refusal, 1, observed);
        // Only the first of its kind is logged, and of these not too many: a program that tries all day, or makes up
        // paths, must not fill the log.
        if !observed && self.logged.take() {
            tracing::info!(sandbox = %self.id, what = %refusal.what, why = %refusal.why, "egress refused");
        } else {
            tracing::debug!(sandbox = %self.id, what = %refusal.what, why = %refusal.why, observed, "egress refused");
        }
        denials.push_front(DenialView {
            stage: refusal.stage,
            what: refusal.what.clone(),
            why: refusal.why.clone(),
            ask: refusal.ask.clone(),
            last_at_ms: now,
            count: 1,
            observed,
        });
        denials.truncate(DENIALS_MAX_COUNT);
    }

    /// The latest refusals, in words for the programs in the sandbox.
    pub(crate) fn denied_text(&self) -> String {
        let denials = lock(&self.denials);
        let mut refused = denials.iter().filter(|denial| !denial.observed).peekable();
        if refused.peek().is_none() {
            return "Atoll has refused nothing in this sandbox.\n".to_owned();
        }
        let mut text = "Atoll refused this lately, the newest first.\n".to_owned();
        for denial in refused.take(DENIALS_SHOWN_MAX_COUNT) {
            text.push('\n');
            text.push_str(&explain(&denial.what, &denial.why, denial.ask.as_deref()));
        }
        text
    }

    pub(crate) fn view(&self) -> NetworkView {
        let connections = lock(&self.open).values().map(|connection| connection.view()).collect();
        let mut totals: Vec<TotalView> = lock(&self.totals)
            .iter()
            .map(|(destination, meter)| {
                let Transferred { sent_bytes, received_bytes } = meter.read();
                let connections = meter.connections.load(Ordering::Relaxed);
                TotalView { destination: destination.clone(), connections, sent_bytes, received_bytes }
            })
            .collect();
        totals.sort_by_key(|total| std::cmp::Reverse(total.sent_bytes.saturating_add(total.received_bytes)));
        NetworkView {
            internet: self.policy().internet,
            transferred: self.total.read(),
            connections,
            totals,
            denials: lock(&self.denials).iter().cloned().collect(),
        }
    }
}

/// A quarter of a second at full speed may be saved up.
fn burst(rate: Option<u64>) -> u64 {
    rate.map_or(0, |rate| rate / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(policy: EgressPolicy) -> SandboxNet {
        let budget = Budget::new(&crate::budget::Common::new(0));
        SandboxNet::new(SandboxId::from_parts(1, 1), policy, Transferred::default(), budget)
    }

    /// How many connections can be open at once.
    fn room(net: &SandboxNet, most: usize) -> usize {
        (0..).take_while(|_| net.enter("a.example:443", most).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_has_its_own_limit_and_its_share_and_little_without_internet() {
        assert_eq!(room(&net(EgressPolicy::open()), usize::MAX), 512);
        assert_eq!(room(&net(EgressPolicy::open()), 100), 100);
        assert_eq!(room(&net(EgressPolicy::default()), usize::MAX), CLOSED_CONNECTIONS_MAX_COUNT);
        let full = net(EgressPolicy::open());
        room(&full, usize::MAX);
        let refusal = full.enter("a.example:443", usize::MAX).unwrap_err();
        assert_eq!((refusal.what.as_str(), refusal.ask.as_deref()), ("a.example:443", Some("--connections")));
        full.leave(1);
        full.enter("a.example:443", usize::MAX).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_and_handshakes_have_a_pace() {
        let net = net(EgressPolicy::open());
        let open_and_close = |count: u64| {
            let opened = |_: &u64| net.enter("a", usize::MAX).map(|open| net.leave(open.number)).is_ok();
            (0..count).filter(opened).count() as u64
        };
        let burst = OPENED_PER_S * OPENED_BURST_S;
        assert_eq!(open_and_close(burst + 100), burst);
        let refusal = net.enter("a", usize::MAX).unwrap_err();
        assert_eq!(
            (refusal.stage, refusal.what.as_str()),
            (Stage::Limit, "connections"),
            "said once for all"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(open_and_close(burst), OPENED_PER_S);

        let begun = tokio::time::Instant::now();
        for _ in 0..HANDSHAKES_PER_S * HANDSHAKES_BURST_S {
            drop(net.begin_interception("a".to_owned()).await.unwrap());
        }
        assert!(begun.elapsed().is_zero());
        for _ in 0..HANDSHAKES_PER_S {
            drop(net.begin_interception("a".to_owned()).await.unwrap());
        }
        assert!(begun.elapsed() >= Duration::from_millis(900), "further ones wait: {:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_are_looked_into_are_few() {
        let net = net(EgressPolicy::open());
        let mut places = Vec::new();
        for _ in 0..INTERCEPTED_MAX_COUNT {
            places.push(net.begin_interception("a".to_owned()).await.unwrap());
        }
        assert_eq!(net.begin_interception("a".to_owned()).await.unwrap_err().stage, Stage::Limit);
        places.pop();
        drop(net.begin_interception("a".to_owned()).await.unwrap());
    }
}
