//! Making sandboxes, waking them, and finding them.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use atoll_core::access::{AccessDraft, Target as AccessTarget};
use atoll_core::id::SandboxId;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::sharing::Needs;
use atoll_core::spec::{RequestKey, SandboxDraft, SandboxUpdate, is_own_annotation};
use atoll_core::{Code, Error};
use atoll_engine::{Access, Caller, Engine, GuestLease, Made, SandboxQuery, Target};
use atoll_server::dialect::delete_untold;
use atoll_store::SandboxRecord;

use crate::turns::Turns;

/// How long a call waits for a sandbox to wake. Clients wait for about thirty seconds, and come again when the server
/// tells them that it takes longer.
const WAKE_WAIT: Duration = Duration::from_secs(20);
/// The annotation of a sandbox of which [`finish`] has not yet done everything. Clients neither set nor see it.
const UNFINISHED: &str = "atoll-unfinished";
const _: () = assert!(is_own_annotation(UNFINISHED), "clients neither set nor see it");
/// The requests that are finishing sandboxes, by the sandbox: of those for one sandbox one runs, and the others wait.
static FINISHING: LazyLock<Turns> = LazyLock::new(Turns::default);

/// The guest of a sandbox. Wakes the sandbox if need be.
///
/// # Errors
/// As [`Engine::guest`]; [`Code::GuestUnavailable`], so that the client comes again, when it takes too long.
pub async fn awake(engine: &Engine, sandbox: &SandboxId) -> Result<GuestLease, Error> {
    tokio::time::timeout(WAKE_WAIT, engine.guest(sandbox)).await.unwrap_or_else(|_elapsed| {
        Err(Error::new(Code::GuestUnavailable, format!("sandbox '{sandbox}' is still waking up")))
    })
}

/// Removes a disk size from the draft that is smaller than the disk that the sandbox begins with: a snapshot's disk
/// cannot shrink. For protocols in which a size is a minimum. Built images and templates may have snapshots.
///
/// # Errors
/// [`Code::TemplateNotFound`], [`Code::SnapshotNotFound`].
pub async fn keep_larger_disk(engine: &Engine, draft: &mut SandboxDraft) -> Result<(), Error> {
    let Some(asked) = draft.resources.disk_bytes else { return Ok(()) };
    let snapshot = match (&draft.snapshot, &draft.template) {
        (Some(id), _) => match id.parse() {
            Ok(id) => Some(engine.ready_snapshot(&id).await?),
            Err(_) => None,
        },
        (None, Some(name)) => match engine.find_template(name).await?.spec.snapshot {
            Some(id) => Some(engine.template_snapshot(&id).await?),
            None => None,
        },
        (None, None) => None,
    };
    let Some(snapshot) = snapshot else { return Ok(()) };
    if snapshot.manifest.resources.disk_bytes > asked {
        draft.resources.disk_bytes = None;
    }
    Ok(())
}

/// Makes a sandbox for a request that the client may send again, and that [`finish`] has to finish. `None` is a request
/// that the client cannot send again.
///
/// # Errors
/// As [`Engine::create_sandbox_once`].
pub async fn make_once(
    engine: &Engine,
    mut draft: SandboxDraft,
    request: Option<RequestKey>,
    by: &Caller,
) -> Result<Made, Error> {
    if request.is_some() {
        draft.annotations.insert(UNFINISHED.to_owned(), String::new());
    }
    engine.create_sandbox_once(draft, request, by).await
}

/// Does what belongs to the making of a sandbox after the engine has made it: ports, files, a first command. `steps` gives the
/// record as it is then. When they fail the sandbox goes: no client was told of it. One that an earlier request made stays
/// as it is: clients may have closed its ports since, or have it for themselves. Unless the server was killed before
/// the steps were done: then they are done now, again from the first, if the caller may manage the sandbox.
///
/// Several requests may be here for one sandbox, as a repetition may come while the first request is under way. One
/// of them does the steps; the others wait for it, and then go by what it left: a sandbox that is finished, one that is
/// not, or none.
///
/// Whatever a dialect does with a sandbox between its making and the answer goes through here.
///
/// # Errors
/// As `steps`; nothing is left of the sandbox then, if this request made it. As [`Engine::authorize`].
/// [`Code::SandboxNotFound`] when the request that made it failed meanwhile.
pub async fn finish<E, F>(
    engine: &Engine,
    by: &Caller,
    made: Made,
    steps: impl FnOnce(SandboxRecord) -> F,
) -> Result<Made, E>
where
    E: From<Error>,
    F: Future<Output = Result<SandboxRecord, E>>,
{
    let is_new = made.is_new();
    let told = |record| if is_new { Made::New(record) } else { Made::Before(record) };
    let mut record = made.into_record();
    if !is_new && !is_unfinished(&record) {
        return Ok(told(record));
    }
    let id = record.id.clone();
    // It lasts until the sandbox is finished, or deleted because it could not be.
    let _turn = FINISHING.take(id.as_str()).await;
    // No other request can find a sandbox that was made without a request's key: there is nothing to look at anew.
    if is_unfinished(&record) {
        record = engine.sandbox(&id)?;
        if !is_unfinished(&record) {
            return Ok(told(record));
        }
    }
    if !is_new {
        engine.authorize(by, Needs::MANAGE, Target::Sandbox(id.as_str())).await?;
    }
    let finished = async { marked_as_finished(engine, steps(record).await?).await.map_err(E::from) };
    match finished.await {
        Ok(record) => Ok(told(record)),
        Err(error) => {
            if is_new {
                delete_untold(engine, &id).await;
            }
            Err(error)
        }
    }
}

fn is_unfinished(record: &SandboxRecord) -> bool {
    record.annotations.contains_key(UNFINISHED)
}

async fn marked_as_finished(engine: &Engine, record: SandboxRecord) -> Result<SandboxRecord, Error> {
    if !is_unfinished(&record) {
        return Ok(record);
    }
    let annotations = [(UNFINISHED.to_owned(), None)].into();
    engine.update_sandbox(&record.id, SandboxUpdate { annotations, ..SandboxUpdate::default() }).await
}

/// Lets every client reach a target of a sandbox under a name of the dialect's, unless an earlier try of the same making
/// did.
///
/// # Errors
/// As [`Engine::create_access`].
pub async fn open(
    engine: &Engine,
    sandbox: &SandboxId,
    target: AccessTarget,
    name: &str,
    by: &Caller,
) -> Result<(), Error> {
    let is_this = |access: &Access| access.name.as_deref() == Some(name) && access.target == target;
    if engine.accesses(sandbox)?.iter().any(is_this) {
        return Ok(());
    }
    let access = AccessDraft { target, public: true, name: Some(name.to_owned()), ttl_ms: None };
    engine.create_access(sandbox, access, by).await.map(drop)
}

/// Where a sandbox stands in listings, which go from the newest to the oldest; the newer is the greater. Its id cannot
/// say that: a sandbox that waited in a pool is newer than its id. A protocol gives it to the client as text, to ask
/// for the next page with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    created_ms: u64,
    id: SandboxId,
}

impl Place {
    /// The place of a sandbox.
    #[must_use]
    pub fn of(record: &SandboxRecord) -> Self {
        Self { created_ms: record.created_ms, id: record.id.clone() }
    }

    /// The place of the sandbox with this id, for protocols that ask for the next page with the last one's id. For a
    /// sandbox that is gone it is about the place where it stood.
    ///
    /// # Errors
    /// As [`Engine::made_ms`].
    pub async fn of_id(engine: &Engine, id: SandboxId) -> Result<Self, Error> {
        let created_ms = engine.made_ms(&id).await?.unwrap_or_else(|| id.parts().0);
        Ok(Self { created_ms, id })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created_ms, self.id)
    }
}

/// The text is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (ms, id) = text.split_once('.').ok_or(NoPlace)?;
        match (ms.parse(), id.parse()) {
            (Ok(created_ms), Ok(id)) => Ok(Self { created_ms, id }),
            _ => Err(NoPlace),
        }
    }
}

/// Which of the matching sandboxes the client wants.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The last sandbox of the page before: this page has sandboxes that were made before it.
    pub after: Option<Place>,
    /// Matching ones to leave out.
    pub skip: usize,
    /// Most to give; `None` is all.
    pub limit: Option<usize>,
    /// Gives more than `limit` rather than a part of those that were made in one millisecond: for protocols that ask
    /// for the next page with nothing but the time at which the last one was made.
    pub whole_times: bool,
}

/// Lists the sandboxes that a caller may know of by a filter of the protocol's own, the newest first. Says whether
/// there are more.
///
/// # Errors
/// As [`Engine::sandboxes`].
pub async fn list(
    engine: &Engine,
    mut query: SandboxQuery,
    page: &Page,
    caller: &Caller,
    matches: impl Fn(&SandboxRecord) -> bool,
) -> Result<(Vec<SandboxRecord>, bool), Error> {
    query.limit = Some(PAGE_MAX_COUNT);
    let is_after =
        |record: &SandboxRecord| page.after.as_ref().is_none_or(|after| Place::of(record) < *after);
    let goes_on = |found: &[SandboxRecord], record: &SandboxRecord| {
        page.whole_times && found.last().is_some_and(|last| last.created_ms == record.created_ms)
    };
    let mut left_to_skip = page.skip;
    let mut found = Vec::new();
    loop {
        let listed = engine.sandboxes(&query, caller).await?;
        for record in listed.items.into_iter().filter(|record| is_after(record) && matches(record)) {
            match left_to_skip.checked_sub(1) {
                Some(left) => left_to_skip = left,
                None if page.limit.is_none_or(|limit| found.len() < limit) || goes_on(&found, &record) => {
                    found.push(record);
                }
                None => return Ok((found, true)),
            }
        }
        match listed.next {
            Some(next) => query.cursor = Some(next.to_string()),
            None => return Ok((found, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_by_when_sandboxes_were_made() {
        let place = |created_ms, born_ms| Place { created_ms, id: SandboxId::from_parts(born_ms, 1) };
        assert!(place(2, 1) < place(3, 0) && place(2, 1) < place(2, 2));
        assert_eq!(place(2, 1).to_string().parse(), Ok(place(2, 1)));
        for text in ["", ".", "1", "1.sb", "x.sb06h1pm3hn51rfms7wpnf", "sb06h1pm3hn51rfms7wpnf"] {
            assert_eq!(text.parse::<Place>(), Err(NoPlace), "{text}");
        }
    }
}
