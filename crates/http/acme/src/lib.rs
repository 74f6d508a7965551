//! Certificates of the server's own port from a server of ACME (RFC 8555), such as Let's Encrypt.
//!
//! ```text
//! Acme::run ──▶ state in the database ──claimed by one──▶ order ──▶ server of ACME
//!    │              ▲         ▲                             │            │ asks
//!    │ certificate  │ answers │ answers to challenges       │            ▼
//!    ▼              │         └──── hook (DNS-01) ◀─────────┤     Door, port 80 (HTTP-01)
//! Issued (TLS)      └── Door of every node                  └──▶ chain and key, sealed
//! ```
//!
//! What holds:
//!
//! - One of the servers that share the database orders; the others find the certificate there.
//! - No more than four orders are begun in an hour, however often servers are started; a server of ACME that wants to
//!   be left alone is left alone.
//! - The server of ACME is not believed: what it says is bounded, it can ask only about the names that were asked for, and a
//!   certificate is taken only if it fits key and names.
//! - An answer to a challenge is in the database before it is published. If it is left over, the next server that
//!   orders, or that finds it, removes it.

mod door;
mod fetch;
mod hook;
mod order;
mod row;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_engine::{Engine, ToSeal};
use atoll_tls::{Issued, Leaf, usable};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::door::Door;
use crate::fetch::Http;
use crate::hook::Verb;
use crate::order::{Failed, Fulfilled, Way};
use crate::row::{Book, Rows};
use crate::state::{SILENCE_MS, State, renew_at_ms};

/// How long an order may take altogether.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1200);
/// How often the server that orders says that it is there.
const HOLD_INTERVAL: Duration = Duration::from_millis(SILENCE_MS / 3);
/// How often the database is asked whether another node has a new certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The same where there is no other node.
const LOOK_ALONE_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// How long a server of ACME is left alone that has had enough of us and does not say for how long, milliseconds.
const ENOUGH_MS: u64 = 3_600_000;
/// Longest reason of a failure, letters.
const REASON_MAX_COUNT: usize = 1000;

/// The certificate to get, and where to get it.
#[derive(Debug)]
pub struct AcmeConfig {
    /// Address of the server's directory.
    pub directory: String,
    /// An authority to be trusted for that, besides the host's, PEM.
    pub extra_ca: Option<String>,
    /// The email address to which the server of ACME may write.
    pub email: Option<String>,
    /// An account elsewhere that the one there belongs to.
    pub external: Option<ExternalAccount>,
    /// The server's domain.
    pub domain: String,
    /// The names that the certificate is to be for; `*.` before a name is for all names one label below it.
    pub names: Vec<String>,
    /// How we prove that these are ours.
    pub proof: Proof,
}

/// An account elsewhere (RFC 8555, section 7.3.4).
#[derive(Debug)]
pub struct ExternalAccount {
    /// Its key's id.
    pub kid: String,
    /// Its key, in base64url.
    pub key: Secret,
}

impl ExternalAccount {
    fn bytes(&self) -> std::result::Result<Vec<u8>, &'static str> {
        let text = self.key.reveal().trim().trim_end_matches('=');
        URL_SAFE_NO_PAD.decode(text).map_err(|_other| "the key is not base64url")
    }
}

/// How we prove that names are ours.
#[derive(Debug)]
pub enum Proof {
    /// HTTP-01: by the answers that the server gives on port 80.
    Http,
    /// DNS-01: by records of the domain, which a program makes.
    Dns {
        /// The program.
        hook: PathBuf,
        /// How long it takes until records can be seen from everywhere.
        wait: Duration,
    },
}

/// Gets the certificate, and keeps it new.
#[derive(Debug)]
pub struct Acme {
    config: AcmeConfig,
    http: Http,
    issued: Arc<Issued>,
    rows: Rows,
    /// The names under which the account and the certificate are sealed.
    account_name: String,
    certificate_name: String,
    /// The name of this server among all that may order.
    who: String,
    jitter: u8,
}

impl Acme {
    /// Sets everything up, and takes what is in the database already.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for an authority or key that cannot be read; [`Code::StoreUnavailable`].
    pub async fn open(engine: &Engine, config: AcmeConfig) -> Result<Self> {
        let invalid = |why: String| Error::new(Code::InvalidArgument, why);
        let http =
            Http::new(config.extra_ca.as_deref()).map_err(|why| invalid(format!("--acme-ca: {why}")))?;
        if let Some(external) = &config.external {
            external.bytes().map_err(|why| invalid(format!("--acme-eab-key-file: {why}")))?;
        }
        let kid = config.external.as_ref().map_or("", |external| external.kid.as_str());
        let digest = |parts: &[&str]| blake3::hash(parts.join("\n").as_bytes()).to_hex()[..16].to_owned();
        let mut parts = vec![config.directory.as_str()];
        let account = digest(&[config.directory.as_str(), kid]);
        parts.extend(config.names.iter().map(String::as_str));
        let certificate = digest(&parts);
        let acme = Self {
            http,
            issued: Arc::default(),
            account_name: format!("acme_account:{account}"),
            certificate_name: format!("acme_certificate:{certificate}"),
            rows: Rows { engine: engine.clone(), name: certificate },
            who: engine.node_id().map_or_else(|| "this".to_owned(), |id| id.to_string()),
            jitter: getrandom::u32()
                .map_err(|error| Error::new(Code::Internal, error.to_string()))?
                .to_le_bytes()[0],
            config,
        };
        let (state, _version) = acme.rows.read().await?;
        acme.take(&state).await?;
        Ok(acme)
    }

    /// Where the certificate is put.
    #[must_use]
    pub fn issued(&self) -> Arc<Issued> {
        Arc::clone(&self.issued)
    }

    /// Answers challenges on a port for plain HTTP, and sends everything else to TLS on that port, until the server stops.
    pub async fn serve_challenges(&self, listener: TcpListener, https_port: u16, stop: CancellationToken) {
        let AcmeConfig { domain, names, .. } = &self.config;
        Door::new(self.rows.clone(), domain, names, https_port).serve(listener, stop).await;
    }

    /// Gets the certificate and renews it until the server stops.
    pub async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = self.keep() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn keep(&self) {
        let (mut seen, mut started) = (None, true);
        let look_interval =
            if self.rows.engine.node_id().is_some() { LOOK_INTERVAL } else { LOOK_ALONE_INTERVAL };
        loop {
            let pause = match self.look(&mut seen, &mut started).await {
                Ok(until_ms) => Duration::from_millis(until_ms.saturating_sub(now_ms())).min(look_interval),
                // The store has said why.
                Err(_unavailable) => look_interval,
            };
            tokio::time::sleep(pause.max(PAUSE_MIN)).await;
        }
    }

    /// Takes what is new, orders what is due, and says when to look again.
    async fn look(&self, seen: &mut Option<i64>, started: &mut bool) -> Result<u64> {
        let (state, version) = self.rows.read().await?;
        if *seen != Some(version) {
            self.take(&state).await?;
            *seen = Some(version);
        }
        let due_ms = self.due_ms();
        if due_ms > now_ms()
            && let Some(left) = state.claim_left(&self.who, now_ms())
        {
            if self.rows.write(&left, version, None).await? {
                self.remove_left(left, version + 1).await;
            }
            return Ok(0);
        }
        if due_ms > now_ms() {
            *started = false;
            return Ok(due_ms);
        }
        match state.claim(&self.who, now_ms(), *started) {
            Err(until_ms) => Ok(until_ms),
            Ok(claimed) => {
                *started = false;
                if self.rows.write(&claimed, version, None).await? {
                    self.order(claimed, version + 1).await;
                }
                // The outcome of the order is in the database.
                Ok(0)
            }
        }
    }

    fn due_ms(&self) -> u64 {
        match self.issued.status() {
            (Some(leaf), _) => renew_at_ms(leaf.from_s, leaf.until_s, self.jitter),
            (None, _) => 0,
        }
    }

    /// Puts the certificate that the database has in use.
    async fn take(&self, state: &State) -> Result<()> {
        self.issued.say(state.failure.clone());
        let Some((chain, key)) = self.rows.engine.sealed(&self.certificate_name).await? else {
            return Ok(());
        };
        let before = self.issued.status().0;
        match self.issued.put(&chain, &key) {
            Ok(leaf) if before.as_ref() != Some(&leaf) => {
                tracing::info!(
                    names = leaf.names.join(" "),
                    days_left = days_left(&leaf),
                    "a certificate is in use"
                );
            }
            Ok(_same) => {}
            Err(error) => tracing::error!(
                error = fetch::chain(&error),
                "the certificate in the database cannot be used"
            ),
        }
        Ok(())
    }

    /// Orders, with the right to do so; the outcome is in the database afterwards.
    async fn order(&self, state: State, version: i64) {
        let names = self.config.names.join(" ");
        tracing::info!(names, directory = self.config.directory, "ordering a certificate");
        let book = Mutex::new(Book { rows: self.rows.clone(), state, version });
        let work = async {
            self.clean(&book).await;
            let made = tokio::time::timeout(ORDER_TIMEOUT, Box::pin(self.make(&book))).await;
            let made =
                made.unwrap_or_else(|_late| Err(Failed::Own("it took longer than 20 minutes".to_owned())));
            if let Err(error) = self.conclude(&book, made).await {
                tracing::warn!(%error, "what became of the order could not be kept");
            }
            self.clean(&book).await;
            release(&book).await;
        };
        while_held(&book, work).await;
    }

    /// Writes down the outcome of an order, and puts the issued certificate in use.
    async fn conclude(&self, book: &Mutex<Book>, made: std::result::Result<Fulfilled, Failed>) -> Result<()> {
        let mut book = book.lock().await;
        let Fulfilled { chain_pem, key_pem } = match made {
            Ok(made) => made,
            Err(failed) => {
                let why = readable(&fetch::chain(&failed));
                tracing::warn!(why, "no certificate was issued");
                book.state.fail(why, self.told_ms(&failed), self.jitter, now_ms());
                return book.save(None).await;
            }
        };
        atoll_failpoint::fail_point!("acme.issued");
        book.state.fulfil();
        let name = self.certificate_name.clone();
        book.save(Some(&ToSeal { name, visible: chain_pem, secret: key_pem })).await?;
        self.take(&book.state).await
    }

    /// Removes the answers that an order published which was cut short.
    async fn remove_left(&self, state: State, version: i64) {
        let book = Mutex::new(Book { rows: self.rows.clone(), state, version });
        let work = async {
            self.clean(&book).await;
            release(&book).await;
        };
        while_held(&book, work).await;
    }

    /// How long the server wants to be left alone.
    fn told_ms(&self, failed: &Failed) -> Option<u64> {
        let had_enough = matches!(failed, Failed::Acme(error) if is_problem(error, "rateLimited"));
        self.http.told().ms().or(had_enough.then_some(ENOUGH_MS))
    }

    async fn make(&self, book: &Mutex<Book>) -> std::result::Result<Fulfilled, Failed> {
        let way = match self.config.proof {
            Proof::Http => Way::Http,
            Proof::Dns { .. } => Way::Dns,
        };
        let account = self.account(book).await?;
        let begun = match order::begin(&account, &self.config.names, way).await {
            // The server of ACME has forgotten our account.
            Err(Failed::Acme(error)) if is_problem(&error, "accountDoesNotExist") => {
                let account = self.new_account(book).await?;
                order::begin(&account, &self.config.names, way).await?
            }
            begun => begun?,
        };
        let (order, answers) = begun;
        {
            let mut book = book.lock().await;
            book.state.answers.clone_from(&answers);
            book.save(None).await.map_err(|error| own(&error))?;
        }
        if let Proof::Dns { hook, wait } = &self.config.proof
            && !answers.is_empty()
        {
            for answer in &answers {
                hook::run(hook, Verb::Present, &answer.at, &answer.value).await.map_err(Failed::Own)?;
            }
            atoll_failpoint::fail_point!("acme.published");
            tokio::time::sleep(*wait).await;
        }
        let made = order::finish(order, &self.config.names, way).await?;
        let refused =
            |why: String| Failed::Refused(format!("what the server of ACME issued cannot be used: {why}"));
        let leaf = usable(&made.chain_pem, &made.key_pem).map_err(|error| refused(fetch::chain(&error)))?;
        let covers = |name: &String| leaf.names.contains(name);
        if !self.config.names.iter().all(covers) || leaf.until_s.saturating_mul(1000) <= now_ms() {
            return Err(refused("it is for other names or another time".to_owned()));
        }
        Ok(made)
    }

    /// Removes the published answers to challenges. A failure to remove one is logged, and it is not tried again.
    async fn clean(&self, book: &Mutex<Book>) {
        let answers = book.lock().await.state.answers.clone();
        if answers.is_empty() {
            return;
        }
        if let Proof::Dns { hook, .. } = &self.config.proof {
            for answer in &answers {
                if let Err(why) = hook::run(hook, Verb::Cleanup, &answer.at, &answer.value).await {
                    tracing::warn!(record = answer.at, why, "a record of a challenge may have been left");
                }
            }
        }
        let mut book = book.lock().await;
        book.state.answers.clear();
        if let Err(error) = book.save(None).await {
            tracing::warn!(%error, "it is not known that challenges are over");
        }
    }

    async fn account(&self, book: &Mutex<Book>) -> std::result::Result<Account, Failed> {
        let kept = self.rows.engine.sealed(&self.account_name).await.map_err(|error| own(&error))?;
        let Some((email, credentials)) = kept else { return self.new_account(book).await };
        let parsed: AccountCredentials =
            serde_json::from_str(credentials.reveal()).map_err(|error| own(&error))?;
        let account =
            Account::builder_with_http(Box::new(self.http.clone())).from_credentials(parsed).await?;
        if email != self.email() {
            let contacts = self.contacts();
            let contacts: Vec<&str> = contacts.iter().map(String::as_str).collect();
            account.update_contacts(&contacts).await?;
            self.keep_account(book, credentials).await?;
        }
        Ok(account)
    }

    async fn new_account(&self, book: &Mutex<Book>) -> std::result::Result<Account, Failed> {
        let contacts = self.contacts();
        let contact: Vec<&str> = contacts.iter().map(String::as_str).collect();
        let draft =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let external = self.config.external.as_ref().map(|external| {
            let key = external.bytes().map_err(|why| Failed::Own(why.to_owned()))?;
            Ok::<_, Failed>(ExternalAccountKey::new(external.kid.clone(), &key))
        });
        let external = external.transpose()?;
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let made = builder.create(&draft, self.config.directory.clone(), external.as_ref()).await?;
        let (account, credentials) = made;
        let text = serde_json::to_string(&credentials).map_err(|error| own(&error))?;
        self.keep_account(book, Secret::new(text)).await?;
        tracing::info!(directory = self.config.directory, "there is an account at the server of ACME");
        Ok(account)
    }

    async fn keep_account(&self, book: &Mutex<Book>, secret: Secret) -> std::result::Result<(), Failed> {
        let seal = ToSeal { name: self.account_name.clone(), visible: self.email().to_owned(), secret };
        book.lock().await.save(Some(&seal)).await.map_err(|error| own(&error))
    }

    fn email(&self) -> &str {
        self.config.email.as_deref().unwrap_or_default()
    }

    fn contacts(&self) -> Vec<String> {
        self.config.email.iter().map(|email| format!("mailto:{email}")).collect()
    }
}

/// Does something with the right to order, unless that is lost meanwhile.
async fn while_held(book: &Mutex<Book>, work: impl Future<Output = ()>) {
    let hold = async {
        loop {
            tokio::time::sleep(HOLD_INTERVAL).await;
            let mut book = book.lock().await;
            book.state.hold(now_ms());
            if let Err(error) = book.save(None).await {
                break error;
            }
        }
    };
    tokio::select! {
        () = work => {}
        error = hold => tracing::warn!(%error, "the order of a certificate is given up"),
    }
}

async fn release(book: &Mutex<Book>) {
    let mut book = book.lock().await;
    book.state.release();
    if let Err(error) = book.save(None).await {
        tracing::warn!(%error, "others do not know yet that this order is over");
    }
}

fn own(error: &dyn std::error::Error) -> Failed {
    Failed::Own(fetch::chain(error))
}

fn is_problem(error: &instant_acme::Error, kind: &str) -> bool {
    let instant_acme::Error::Api(problem) = error else { return false };
    let said = problem.r#type.as_deref().and_then(|said| said.strip_prefix("urn:ietf:params:acme:error:"));
    said == Some(kind)
}

/// A text that another program sent, made fit to be shown.
pub(crate) fn readable(text: &str) -> String {
    let one_line = |letter: char| if letter.is_whitespace() { ' ' } else { letter };
    text.chars().map(one_line).filter(|letter| !letter.is_control()).take(REASON_MAX_COUNT).collect()
}

fn days_left(leaf: &Leaf) -> u64 {
    leaf.until_s.saturating_sub(now_ms() / 1000) / 86_400
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
