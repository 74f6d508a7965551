//! Objects on disk: a directory each below the server's spool, with `object.json` and, once the client sent it,
//! `content`.
//!
//! Changes are flushed before the server answers. Changes of one object exclude each other by a lock of the process;
//! content is received beside its place, and put there under that lock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use atoll_dialect_kit::memory::{Held, Memory};
use atoll_dialect_kit::promise::Promise;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{Caller, Engine};
use serde::{Deserialize, Serialize};

use super::known::{Known, Totals};
use crate::disk::{self, flush_dir, random};

/// Prefix of ids.
const PREFIX: &str = "obj_";
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 24;
/// Most bytes of contents that are on their way: they are counted with the others once they are there.
const COMING_MAX_BYTES: usize = 16 << 30;
/// How long an object waits for its content, milliseconds.
const UPLOAD_MS: u64 = 24 * 3600 * 1000;

/// The kind of the content, as the client says it: archives are unpacked where they are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ContentType {
    Unspecified,
    Text,
    Binary,
    Gzip,
    Tar,
    Tgz,
}

/// Whether the content can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum State {
    /// The client may send the content.
    Uploading,
    /// The content stays as it is.
    ReadOnly,
}

/// The record of an object.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Object {
    pub(crate) id: String,
    /// The key that made it: no other key sees it.
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) content_type: ContentType,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) created_at_ms: u64,
    pub(crate) delete_after_ms: Option<u64>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) state: State,
    /// The secret from which its signing key is derived, hexadecimal.
    pub(crate) secret: String,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object").field("id", &self.id).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Object {
    /// About so many bytes has what a client says of it.
    pub(super) fn bytes(&self) -> usize {
        self.name.len() + self.metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }

    /// When it expires, if it does.
    pub(super) fn end_ms(&self) -> Option<u64> {
        let waits = self.state == State::Uploading;
        let waits = waits.then(|| self.created_at_ms.saturating_add(UPLOAD_MS));
        waits.into_iter().chain(self.delete_after_ms).min()
    }

    /// Whether it has expired.
    fn is_over(&self, now: u64) -> bool {
        self.end_ms().is_some_and(|end| now > end)
    }
}

/// All objects. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    dir: PathBuf,
    changing: Arc<Mutex<()>>,
    /// `None` until it is first asked for.
    known: Arc<Mutex<Option<Known>>>,
    coming: Memory,
}

/// Whether a text has the form of an id: it becomes part of a path.
fn is_id(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|rest| {
        rest.len() == ID_DIGITS && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// The id of an object for which there is a promise.
pub(crate) fn id_of(promise: &Promise) -> String {
    format!("{PREFIX}{}", promise.digits(ID_DIGITS))
}

impl Shelf {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self::at(engine.spool_dir().join("runloop"))
    }

    fn at(dir: PathBuf) -> Self {
        Self { dir, changing: Arc::default(), known: Arc::default(), coming: Memory::new(COMING_MAX_BYTES) }
    }

    /// Counts what a caller sends, while it is on its way.
    pub(crate) fn coming(&self, by: &Caller) -> Held {
        self.coming.hold(by)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave half done.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// Keeps a new object.
    pub(crate) fn create(&self, object: &Object) -> io::Result<()> {
        let _lock = self.lock();
        fs::create_dir_all(self.place(&object.id))?;
        self.save(object)?;
        flush_dir(&self.dir)
    }

    fn save(&self, object: &Object) -> io::Result<()> {
        disk::save(&self.place(&object.id), "object.json", &serde_json::to_vec(object)?)?;
        self.known(|known| known.note(object))
    }

    /// Asks what is known, or changes it. Whoever changes objects does so while it has their lock, and takes this one after.
    fn known<R>(&self, ask: impl FnOnce(&mut Known) -> R) -> io::Result<R> {
        // A task that panics while it holds the lock leaves what is whole, or nothing.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = known.take().map_or_else(|| self.look(), Ok)?;
        Ok(ask(known.insert(whole)))
    }

    fn look(&self) -> io::Result<Known> {
        let mut known = Known::default();
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(known),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(id) = name.to_str().filter(|id| is_id(id)) else { continue };
            match self.find(id) {
                Ok(Some(object)) => known.note(&object),
                Ok(None) => known.note_rest(id),
                Err(error) => tracing::warn!(%error, id, "an object cannot be read"),
            }
        }
        Ok(known)
    }

    /// The object with this id, of any key.
    pub(crate) fn find(&self, id: &str) -> io::Result<Option<Object>> {
        if !is_id(id) {
            return Ok(None);
        }
        let read = match fs::read(self.place(id).join("object.json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let object: Object = serde_json::from_slice(&read)?;
        Ok(Some(object).filter(|object| !object.is_over(now_ms())))
    }

    /// The objects of a key, newest first. Each is read when it is its turn.
    pub(crate) fn of(&self, owner: &KeyId) -> io::Result<impl Iterator<Item = Object>> {
        let ids = self.known(|known| known.ids(owner, now_ms()))?;
        Ok(ids.into_iter().filter_map(|id| {
            self.find(&id).unwrap_or_else(|error| {
                tracing::warn!(%error, id, "an object cannot be read");
                None
            })
        }))
    }

    /// The totals of a key, and of all. Removes objects that have expired.
    pub(crate) fn totals(&self, owner: &KeyId) -> io::Result<(Totals, Totals)> {
        for id in self.known(|known| known.over(now_ms()))? {
            self.remove_over(&id)?;
        }
        self.known(|known| known.totals(owner, now_ms()))
    }

    /// Removes an object. A client that is reading it reads on.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let _lock = self.lock();
        self.remove_locked(id)
    }

    /// The same, if the object has expired: it may have been made just now.
    fn remove_over(&self, id: &str) -> io::Result<()> {
        let _lock = self.lock();
        if self.find(id)?.is_none() { self.remove_locked(id) } else { Ok(()) }
    }

    fn remove_locked(&self, id: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.place(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => flush_dir(&self.dir)?,
        }
        self.known(|known| known.forget(id))
    }

    /// A path at which content may be received.
    pub(crate) fn beside(&self, id: &str) -> io::Result<PathBuf> {
        Ok(self.place(id).join(format!("{}.part", &random()?[..16])))
    }

    /// Puts received content in its place. `None` when the object takes no content any more.
    pub(crate) fn fill(&self, id: &str, received: &Path, size: u64) -> io::Result<Option<()>> {
        File::open(received)?.sync_all()?;
        let _lock = self.lock();
        let Some(mut object) = self.find(id)?.filter(|object| object.state == State::Uploading) else {
            return Ok(None);
        };
        fs::rename(received, self.place(id).join("content"))?;
        object.size_bytes = Some(size);
        self.save(&object)?;
        Ok(Some(()))
    }

    /// Closes an object: its content stays as it is. `None` when there is no such object, or no content.
    pub(crate) fn complete(&self, id: &str) -> io::Result<Option<Object>> {
        let _lock = self.lock();
        let Some(mut object) = self.find(id)?.filter(|object| object.size_bytes.is_some()) else {
            return Ok(None);
        };
        object.state = State::ReadOnly;
        self.save(&object)?;
        Ok(Some(object))
    }

    /// Opens the content of an object that is closed.
    pub(crate) fn open(&self, object: &Object) -> io::Result<File> {
        File::open(self.place(&object.id).join("content"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf() -> (tempfile::TempDir, Shelf) {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::at(dir.path().join("objects"));
        (dir, shelf)
    }

    fn object(owner: &KeyId, created_at_ms: u64) -> Object {
        Object {
            id: id_of(&Promise::new().unwrap()),
            owner: owner.to_string(),
            name: "x".into(),
            content_type: ContentType::Text,
            metadata: BTreeMap::new(),
            created_at_ms,
            delete_after_ms: None,
            size_bytes: None,
            state: State::Uploading,
            secret: random().unwrap(),
        }
    }

    #[test]
    fn ids_are_no_paths() {
        assert!(is_id(&id_of(&Promise::new().unwrap())));
        for bad in ["", "obj_", "obj_../../etc", "obj_ABCDEFABCDEFABCDEFABCDEF", "0123456789abcdef01234567"] {
            assert!(!is_id(bad), "{bad}");
        }
    }

    #[test]
    fn content_stays_when_the_object_is_closed() {
        let (_dir, shelf) = shelf();
        let made = object(&KeyId::from_parts(1, 1), now_ms());
        shelf.create(&made).unwrap();
        assert!(shelf.complete(&made.id).unwrap().is_none(), "nothing was sent");
        for text in ["first", "second"] {
            let beside = shelf.beside(&made.id).unwrap();
            fs::write(&beside, text).unwrap();
            assert!(shelf.fill(&made.id, &beside, text.len() as u64).unwrap().is_some());
        }
        let closed = shelf.complete(&made.id).unwrap().unwrap();
        assert_eq!((closed.state, closed.size_bytes), (State::ReadOnly, Some(6)));
        let late = shelf.beside(&made.id).unwrap();
        fs::write(&late, "third").unwrap();
        assert!(shelf.fill(&made.id, &late, 5).unwrap().is_none());
        assert_eq!(io::read_to_string(shelf.open(&closed).unwrap()).unwrap(), "second");
        shelf.remove(&made.id).unwrap();
        assert!(shelf.find(&made.id).unwrap().is_none());
    }

    #[test]
    fn those_whose_time_is_over_go() {
        let (_dir, shelf) = shelf();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(0, random));
        let forgotten = object(&one, 1);
        let over = Object { delete_after_ms: Some(1), ..object(&one, now_ms()) };
        let (kept, theirs) = (object(&one, now_ms()), object(&other, now_ms()));
        for object in [&forgotten, &over, &kept, &theirs] {
            shelf.create(object).unwrap();
        }
        let begun = shelf.place(&id_of(&Promise::new().unwrap()));
        fs::create_dir(&begun).unwrap();
        // The next server removes them, too.
        for shelf in [&Shelf::at(shelf.dir.clone()), &shelf] {
            let found: Vec<String> = shelf.of(&one).unwrap().map(|object| object.id).collect();
            assert_eq!(found, std::slice::from_ref(&kept.id));
            let (own, all) = shelf.totals(&one).unwrap();
            assert_eq!((own.count, all.count), (1, 2));
            assert!(!shelf.place(&forgotten.id).try_exists().unwrap() && !begun.try_exists().unwrap());
        }
    }

    #[test]
    fn totals_follow_the_objects_and_lists_read_those_of_their_key() {
        let (_dir, shelf) = shelf();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(0, random));
        let now = now_ms();
        let (first, second) = (object(&one, now - 1), object(&one, now));
        let theirs = object(&other, now);
        for object in [&second, &theirs, &first] {
            shelf.create(object).unwrap();
        }
        let beside = shelf.beside(&first.id).unwrap();
        fs::write(&beside, "12345").unwrap();
        shelf.fill(&first.id, &beside, 5).unwrap();
        // Nothing of it is read for another key's list.
        fs::write(shelf.place(&theirs.id).join("object.json"), "nothing").unwrap();
        let ids = || shelf.of(&one).unwrap().map(|object| object.id).collect::<Vec<_>>();
        assert_eq!(ids(), [second.id.clone(), first.id.clone()]);
        assert_eq!(shelf.of(&other).unwrap().count(), 0);
        let totals = |count, bytes| Totals { count, bytes };
        assert_eq!(shelf.totals(&one).unwrap(), (totals(2, 5), totals(3, 5)));
        shelf.remove(&first.id).unwrap();
        assert_eq!(ids(), std::slice::from_ref(&second.id));
        assert_eq!(shelf.totals(&one).unwrap(), (totals(1, 0), totals(2, 0)));
    }
}
