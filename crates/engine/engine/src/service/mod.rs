//! Services: commands of a sandbox that should always run.
//!
//! A [`keeper`] task owns each service: it starts its runs, looks at its probes, and decides what follows an end. A run
//! is an exec with a name of the server's own, which no client can take, and is recorded before it begins. So after a restart of the server
//! the keeper finds the exec again, or begins it if it never came into being, and no run happens twice. All other tasks
//! read what the keeper publishes, and ask it for changes.
//!
//! A service is part of its sandbox and no use of it: a sandbox in which only services run is idle, and probes neither wake
//! it nor keep it awake.
//!
//! Services that a sandbox begins with ([`declared`]) are recorded with it, in one commit, so that it never is there without them. Its
//! maker waits until they have settled. What its template starts is one of them, [`START_SERVICE`]: it begins in each boot, however it ended in
//! the one before; the others wait for it; and a command that ends well before it is ready has put its server into the background.

mod calls;
mod declared;
mod keeper;
mod log;
mod probe;
mod used;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::error::shorten;
use atoll_core::id::{ExecId, ServiceId};
use atoll_core::limits::SERVICES_MAX_COUNT;
use atoll_core::service::{START_SERVICE, ServiceState};
use atoll_core::spec::IdempotencyKey;
use atoll_core::{Code, Error, Result};
use atoll_store::ServiceRecord;
use tokio::sync::{RwLock, mpsc, oneshot, watch};

pub(crate) use declared::{BEGIN_PATIENCE, Declared, check_declared};
pub use log::{ServiceLog, ServicePiece};
pub(crate) use probe::{ATTEMPT_MAX, Inside};
pub(crate) use used::ServiceUse;

/// The name of a run begins with this; the service and the number of the run follow.
const RUN_KEY: &str = "atoll-service-";
/// Orders that wait for a keeper; more wait outside.
const ORDERS_MAX_COUNT: usize = 16;

pub(crate) fn run_key(service: &ServiceId, number: u64) -> IdempotencyKey {
    IdempotencyKey::server(format!("{RUN_KEY}{service}-{number}"))
}

/// Whether the exec that the server gave this name is a run of a service.
pub(crate) fn is_run_key(name: &str) -> bool {
    name.starts_with(RUN_KEY)
}

fn not_found(name: &str) -> Error {
    Error::new(Code::ServiceNotFound, format!("the sandbox has no service '{}'", shorten(name)))
        .hint("'atoll service ls SANDBOX' shows what there is")
}

/// A service as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// What it is, and its runs.
    pub record: ServiceRecord,
    /// Where it is.
    pub state: ServiceState,
    /// Why, where there is something to say.
    pub reason: Option<String>,
    /// The exec of its last run.
    pub exec: Option<ExecId>,
    /// When it is started again, while it is backing off.
    pub next_start_ms: Option<u64>,
}

/// Something that is asked of a keeper.
#[derive(Debug)]
enum Order {
    /// End the run, and begin another.
    Restart(Reply),
    /// End the run.
    Stop(Reply),
    /// End the run and forget the service.
    Remove(Reply),
    /// Begin another run when no caller uses this one: its program is another one now.
    Renew(Reply),
}

/// How an order ended.
type Reply = oneshot::Sender<Result<()>>;

/// The published side of a service.
#[derive(Debug)]
pub(crate) struct ServiceShared {
    view: watch::Sender<ServiceView>,
    orders: mpsc::Sender<Order>,
    /// A use of the run holds it shared; the keeper holds it alone while it begins another run for a new program.
    gate: Arc<RwLock<()>>,
}

impl ServiceShared {
    fn new(record: ServiceRecord) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let (orders, inbox) = mpsc::channel(ORDERS_MAX_COUNT);
        let state = ServiceState::Waiting;
        let view = ServiceView { record, state, reason: None, exec: None, next_start_ms: None };
        (Arc::new(Self { view: watch::Sender::new(view), orders, gate: Arc::default() }), inbox)
    }

    pub(crate) fn view(&self) -> ServiceView {
        self.view.borrow().clone()
    }

    /// To wait for what changes of it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<ServiceView> {
        self.view.subscribe()
    }

    /// Says that the run has become ready.
    fn set_ready(&self) {
        self.view.send_if_modified(|view| {
            let was = std::mem::replace(&mut view.state, ServiceState::Running);
            view.reason = None;
            was != ServiceState::Running
        });
    }

    fn is_ready(&self) -> bool {
        self.view.borrow().state == ServiceState::Running
    }

    /// Asks the keeper for something, and waits until it is done. `None`: there is no keeper any more.
    async fn ask(&self, order: impl FnOnce(Reply) -> Order) -> Option<Result<()>> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// The services of one sandbox, by name.
#[derive(Debug, Default)]
pub(crate) struct Services(Mutex<BTreeMap<String, Arc<ServiceShared>>>);

impl Services {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServiceShared>>> {
        // One map: a panic leaves it usable as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<ServiceShared>> {
        self.lock().get(name).cloned().ok_or_else(|| not_found(name))
    }

    /// What is recorded of them.
    pub(crate) fn records(&self) -> Vec<ServiceRecord> {
        self.views().into_iter().map(|view| view.record).collect()
    }

    fn views(&self) -> Vec<ServiceView> {
        self.lock().values().map(|service| service.view()).collect()
    }

    /// Begins the first run of what the template starts, which another than the keeper starts: gives the key for its exec.
    pub(crate) fn begin_start(&self, boot: &str) -> Option<IdempotencyKey> {
        let service = self.find(START_SERVICE).ok()?;
        service.view.send_modify(|view| view.record.status.begin_run(boot));
        self.start_key()
    }

    /// The key of the exec that is the last run of what the template starts.
    pub(crate) fn start_key(&self) -> Option<IdempotencyKey> {
        let record = self.find(START_SERVICE).ok()?.view().record;
        record.status.runs.last().map(|run| run_key(&record.id, run.number))
    }

    /// What is recorded of what the template starts.
    pub(crate) fn start_record(&self) -> Option<ServiceRecord> {
        self.find(START_SERVICE).ok().map(|service| service.view().record)
    }

    /// Says that what the template starts was begun and waited for before its sandbox had an owner.
    pub(crate) fn started_ahead(&self, exec: &ExecId) {
        if let Ok(service) = self.find(START_SERVICE) {
            service.view.send_modify(|view| {
                (view.state, view.exec) = (ServiceState::Running, Some(exec.clone()));
            });
        }
    }

    /// Enters a service, if its name is free and there is room.
    fn enter(&self, name: &str, service: &Arc<ServiceShared>) -> Result<()> {
        let mut services = self.lock();
        if services.contains_key(name) {
            return Err(Error::new(Code::NameTaken, format!("the sandbox has a service '{name}' already"))
                .hint("choose another name, or remove that service"));
        }
        if services.len() >= SERVICES_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("the sandbox has {SERVICES_MAX_COUNT} services already"),
            )
            .hint("remove some"));
        }
        services.insert(name.to_owned(), Arc::clone(service));
        Ok(())
    }

    fn leave(&self, name: &str) {
        self.lock().remove(name);
    }
}
