//! One connection of a sandbox, and the [`Dialer`]: the way to its other end.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::policy::{
    Basis, Cidr, Destination, EgressPolicy, HostName, Http, Internet, Sender, canonical,
};
use atoll_recorder::event::{Connection as Ended, Destination as Recorded};
use hickory_proto::rr::RecordType;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::borders::Borders;
use crate::dial::{self, DialError, UpstreamStream};
use crate::gateway::Shared;
use crate::refusal::Refusal;
use crate::sandbox::{Meter, SandboxNet, now_ms};
use crate::trace::{Exchange, would_be};
use atoll_core::network::{ConnectionView, Stage};

/// Where a connection leads, as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The names it may be meant by: one that is certain, or all that the address has.
    pub(crate) names: Arc<[HostName]>,
    pub(crate) address: SocketAddr,
    /// Whether it leads to the host itself or to this server.
    pub(crate) own: bool,
    /// The network closed by the operator that has the address.
    pub(crate) closed: Option<Cidr>,
    /// The sender that connected, if it is known.
    pub(crate) sender: Option<Arc<Sender>>,
}

/// The decision about a connection or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ruling {
    /// Whether the rules let it pass.
    pub(crate) by_rules: bool,
    /// Whether it passes against the rules, because the policy's mode is to observe.
    pub(crate) observed: bool,
    /// The reason of the rules' decision.
    pub(crate) basis: Basis,
}

impl Ruling {
    pub(crate) const fn passes(self) -> bool {
        self.by_rules || self.observed
    }
}

impl Target {
    pub(crate) fn new(context: &Context, names: Vec<HostName>, address: SocketAddr) -> Self {
        let borders = &context.shared.borders;
        let sender = context.connection.sender();
        let address = SocketAddr::new(canonical(address.ip()), address.port());
        let own = borders.is_own(&names, address.ip());
        Self { names: names.into(), address, own, closed: borders.closed(address.ip()), sender }
    }

    /// The same, meant by other names.
    pub(crate) fn meant(&self, borders: &Borders, names: Vec<HostName>) -> Self {
        let own = self.own || borders.is_own_name(&names);
        Self { names: names.into(), own, ..self.clone() }
    }

    pub(crate) fn destination(&self) -> Destination<'_> {
        let name = match &*self.names {
            [name] => Some(name),
            _ => None,
        };
        let (address, port) = (self.address.ip(), self.address.port());
        Destination {
            name,
            address,
            port,
            own: self.own,
            closed: self.closed,
            sender: self.sender.as_deref(),
        }
    }

    pub(crate) fn decide(&self, policy: &EgressPolicy, http: Http<'_>) -> Ruling {
        let to = self.destination();
        let decision = policy.decide_among(&self.names, &to, http);
        let observed = !decision.allowed && policy.observes(&self.names, &to, http);
        Ruling { by_rules: decision.allowed, observed, basis: decision.basis }
    }

    /// Whether rules let anything at all pass there.
    pub(crate) fn could_pass_by_rules(&self, policy: &EgressPolicy) -> bool {
        policy.could_allow_among(&self.names, &self.destination())
    }

    /// Whether a policy lets anything at all pass there.
    pub(crate) fn could_pass(&self, policy: &EgressPolicy) -> bool {
        self.could_pass_by_rules(policy) || policy.observes(&self.names, &self.destination(), Http::Unknown)
    }

    /// `name:port`, or the address.
    pub(crate) fn label(&self) -> String {
        match &*self.names {
            [name] => format!("{name}:{}", self.address.port()),
            _ => self.address.to_string(),
        }
    }

    /// Says why this may not pass.
    pub(crate) fn refusal(&self, policy: &EgressPolicy, basis: Basis, stage: Stage, what: String) -> Refusal {
        let port = self.address.port();
        let by_name = || self.names.first().map(|name| format!("--allow {name}:{port}"));
        let by_address = || match self.address.ip() {
            IpAddr::V4(ip) => format!("--allow-cidr {ip}:{port}"),
            IpAddr::V6(ip) => format!("--allow-cidr [{ip}]:{port}"),
        };
        let ask = match basis {
            Basis::Rule(_) => None,
            Basis::Internet if policy.internet == Internet::Off => {
                Some(format!("--internet on, or {}", by_name().unwrap_or_else(by_address)))
            }
            Basis::Internet => Some(by_name().unwrap_or_else(by_address)),
            Basis::Special(_) | Basis::Resolver => Some(by_address()),
        };
        Refusal { stage, what, why: policy.describe(basis), ask, to: Some(Box::new(self.recorded())) }
    }

    /// As it is recorded.
    pub(crate) fn recorded(&self) -> Recorded {
        Recorded {
            names: self.names.iter().map(ToString::to_string).collect(),
            address: Some(self.address),
            own: self.own,
            closed: self.closed.map(|closed| closed.to_string()),
            ..Recorded::default()
        }
    }
}

/// What a connection is doing, for the policy to look at when it changes.
#[derive(Debug, Clone)]
enum Activity {
    /// It has not been decided upon.
    Opening,
    /// Bytes are carried as they are.
    Relay(Target),
    /// Its requests are decided upon one by one; these are under way.
    Requests(Vec<Request>),
}

#[derive(Debug, Clone)]
struct Request {
    number: u64,
    target: Target,
    method: String,
    path: String,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    opened_ms: u64,
    pub(crate) meter: Meter,
    /// Fires when it is no longer allowed, or the sandbox is let go of.
    pub(crate) cancel: CancellationToken,
    activity: Mutex<Activity>,
    shown: Mutex<Shown>,
    next_request: AtomicU64,
    sender: OnceLock<Arc<Sender>>,
}

/// What listings show.
#[derive(Debug, Clone)]
struct Shown {
    protocol: &'static str,
    target: Option<Target>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(crate) fn new(number: u64, cancel: CancellationToken) -> Self {
        Self {
            number,
            opened_ms: now_ms(),
            meter: Meter::default(),
            cancel,
            activity: Mutex::new(Activity::Opening),
            shown: Mutex::new(Shown { protocol: "proxy", target: None }),
            next_request: AtomicU64::new(1),
            sender: OnceLock::new(),
        }
    }

    /// Sets the sender that made it, if it is known; once.
    pub(crate) fn came_from(&self, sender: Option<Sender>) {
        if let Some(sender) = sender {
            self.sender.get_or_init(|| Arc::new(sender));
        }
    }

    /// The sender that made it, if it is known.
    pub(crate) fn sender(&self) -> Option<Arc<Sender>> {
        self.sender.get().cloned()
    }

    /// Sets what listings show.
    pub(crate) fn show(&self, protocol: &'static str, target: &Target) {
        *lock(&self.shown) = Shown { protocol, target: Some(target.clone()) };
    }

    /// From now on bytes are carried as they are. Enter this before asking the policy.
    pub(crate) fn begin_relay(&self, target: &Target) {
        *lock(&self.activity) = Activity::Relay(target.clone());
    }

    /// From now on requests are decided upon one by one.
    pub(crate) fn begin_requests(&self) {
        *lock(&self.activity) = Activity::Requests(Vec::new());
    }

    fn enter_request(&self, target: &Target, method: &str, path: &str) -> u64 {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let request =
            Request { number, target: target.clone(), method: method.to_owned(), path: path.to_owned() };
        let mut activity = lock(&self.activity);
        match &mut *activity {
            Activity::Requests(requests) => requests.push(request),
            Activity::Opening | Activity::Relay(_) => *activity = Activity::Requests(vec![request]),
        }
        number
    }

    fn leave_request(&self, number: u64) {
        if let Activity::Requests(requests) = &mut *lock(&self.activity) {
            requests.retain(|request| request.number != number);
        }
    }

    /// Whether a policy allows its activity.
    pub(crate) fn is_allowed(&self, policy: &EgressPolicy) -> bool {
        match &*lock(&self.activity) {
            Activity::Opening => true,
            Activity::Relay(target) => target.decide(policy, Http::Unknown).passes(),
            Activity::Requests(requests) => requests.iter().all(|request| {
                let http = Http::Request { method: &request.method, path: &request.path };
                request.target.decide(policy, http).passes()
            }),
        }
    }

    /// How it ended, for the record; `None` when it led nowhere.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let Shown { protocol, target } = lock(&self.shown).clone();
        let target = target?;
        let carried = self.meter.read();
        Some(Ended {
            connection: self.number,
            host: target.destination().name.map(ToString::to_string),
            address: Some(target.address),
            protocol: protocol.to_owned(),
            sent_bytes: carried.sent_bytes,
            received_bytes: carried.received_bytes,
            duration_us: now_ms().saturating_sub(self.opened_ms).saturating_mul(1000),
        })
    }

    pub(crate) fn view(&self) -> ConnectionView {
        let Shown { protocol, target } = lock(&self.shown).clone();
        let carried = self.meter.read();
        let name = target.as_ref().and_then(|target| target.destination().name.map(ToString::to_string));
        ConnectionView {
            number: self.number,
            name,
            address: target.as_ref().map(|target| target.address.ip().to_string()).unwrap_or_default(),
            port: target.map_or(0, |target| target.address.port()),
            protocol: protocol.to_owned(),
            opened_at_ms: self.opened_ms,
            sent_bytes: carried.sent_bytes,
            received_bytes: carried.received_bytes,
        }
    }
}

/// Everything around one connection. Leaves the list of open ones when the last copy goes.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) net: Arc<SandboxNet>,
    pub(crate) connection: Arc<Connection>,
    _entry: Arc<Entry>,
}

#[derive(Debug)]
struct Entry {
    net: Arc<SandboxNet>,
    number: u64,
    _place: OwnedSemaphorePermit,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.net.leave(self.number);
    }
}

impl Context {
    /// `place` is the connection's among those of all sandboxes.
    pub(crate) fn new(
        shared: Arc<Shared>,
        net: Arc<SandboxNet>,
        connection: Arc<Connection>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let entry = Arc::new(Entry { net: Arc::clone(&net), number: connection.number, _place: place });
        Self { shared, net, connection, _entry: entry }
    }

    /// Whether a name that the client says has this address: as the sandbox was told, or as our resolver
    /// says now, for programs that keep addresses longer than this server has run.
    pub(crate) async fn confirm(&self, name: &HostName, address: IpAddr) -> bool {
        if self.net.is_name_of(name, address) {
            return true;
        }
        let policy = self.net.policy();
        if !policy.may_resolve(name).allowed && !policy.observes_names() {
            return false;
        }
        let asked = self.shared.resolver.ask(&self.net, name, RecordType::A).await;
        asked.is_ok() && self.net.is_name_of(name, address)
    }

    pub(crate) fn dialer(&self, target: Target) -> Dialer {
        Dialer { context: self.clone(), target }
    }
}

/// The way to where a connection leads. Copies are cheap and mean the same connection.
#[derive(Debug, Clone)]
pub struct Dialer {
    pub(crate) context: Context,
    pub(crate) target: Target,
}

/// A request that was allowed; keep it until the answer has been passed on in full, so that a policy that
/// forbids it meanwhile can cut it.
#[derive(Debug)]
pub struct Admitted {
    connection: Arc<Connection>,
    net: Arc<SandboxNet>,
    number: u64,
    pub(crate) exchange: Exchange,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connection.leave_request(self.number);
        self.exchange.record(&self.net);
    }
}

impl Dialer {
    /// The sandbox that has the connection.
    #[must_use]
    pub fn sandbox(&self) -> &SandboxId {
        &self.context.net.id
    }

    /// The policy as it is now.
    #[must_use]
    pub fn policy(&self) -> Arc<EgressPolicy> {
        self.context.net.policy()
    }

    /// The name that is meant, if it is certain.
    #[must_use]
    pub fn name(&self) -> Option<&HostName> {
        self.target.destination().name
    }

    /// The sender that made the connection, if it is known.
    #[must_use]
    pub fn sender(&self) -> Option<&Sender> {
        self.target.sender.as_deref()
    }

    /// Where it leads.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.target.address
    }

    /// The same address, meant by the host that a request names (without port). The name is certain only if
    /// the sandbox was told by our resolver that it has this address.
    #[must_use]
    pub fn named(&self, host: &str) -> Self {
        let address = self.target.address;
        let name = host.parse::<HostName>().ok();
        let names = name.filter(|name| self.context.net.is_name_of(name, address.ip())).into_iter().collect();
        let target = self.target.meant(&self.context.shared.borders, names);
        Self { context: self.context.clone(), target }
    }

    /// Fires when the connection must end: it is no longer allowed, or the sandbox is gone.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.context.connection.cancel.clone()
    }

    /// Whether the rules of a policy let a request pass, in any mode of the policy.
    #[must_use]
    pub fn allowed_by_rules(&self, policy: &EgressPolicy, method: &str, path: &str) -> bool {
        self.target.decide(policy, Http::Request { method, path }).by_rules
    }

    /// Decides upon a request, before any of it is sent. `path` is without the query.
    ///
    /// # Errors
    /// [`Refusal`], which is recorded already.
    pub fn admit(&self, scheme: &str, method: &str, path: &str) -> Result<Admitted, Refusal> {
        let connection = Arc::clone(&self.context.connection);
        let number = connection.enter_request(&self.target, method, path);
        let policy = self.policy();
        let ruling = self.target.decide(&policy, Http::Request { method, path });
        let net = Arc::clone(&self.context.net);
        if ruling.by_rules {
            let exchange = Exchange::new(self, scheme, method, path, policy.describe(ruling.basis));
            return Ok(Admitted { connection, net, number, exchange });
        }
        let what = format!("{method} {scheme}://{}{path}", self.target.label());
        let mut refusal = self.target.refusal(&policy, ruling.basis, Stage::Request, shorten(&what));
        if let Some(to) = &mut refusal.to {
            to.tls = scheme == "https";
            to.method = Some(method.to_owned());
            to.path = Some(path.to_owned());
        }
        if ruling.observed {
            net.observe(&refusal);
            let exchange = Exchange::new(self, scheme, method, path, would_be(&refusal.why)).observed();
            return Ok(Admitted { connection, net, number, exchange });
        }
        connection.leave_request(number);
        net.deny(&refusal);
        Err(refusal)
    }

    /// Connects to where it leads, through the upstream proxy if there is one. Bytes that it carries are counted and
    /// held to the sandbox's bandwidth. The caller has had the connection or a request allowed, or needs to know how
    /// the server speaks before there is a request. Where nothing may pass, no connection is made.
    ///
    /// # Errors
    /// [`DialError`].
    pub async fn connect(&self) -> Result<UpstreamStream, DialError> {
        if !self.target.could_pass(&self.policy()) {
            return Err(DialError::Forbidden);
        }
        let meter = self.context.net.meter(&self.target.label());
        meter.connections.fetch_add(1, Ordering::Relaxed);
        let cancel = self.cancelled();
        let dialled = dial::dial(self.context.shared.config.upstream.as_ref(), self.target.address);
        let stream = tokio::select! {
            stream = dialled => stream?,
            () = cancel.cancelled() => return Err(DialError::Cancelled),
        };
        Ok(UpstreamStream::new(stream, self.context.clone(), meter))
    }
}

/// Cuts a text for messages.
pub(crate) fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    text.chars().take(MAX_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
