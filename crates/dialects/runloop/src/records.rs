//! Records that people describe once and use many times: network policies, gateways and agents. Each is a file, in a
//! directory of its kind below the server's spool. The key that made a record sees it, and so do keys that see all.
//!
//! Changes are flushed before the server answers. Changes of one kind exclude each other by a lock of the process.

pub(crate) mod api;
mod index;

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use atoll_dialect_kit::promise::Promise;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::Engine;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::index::Index;
use crate::devboxes::{PAGE_MAX_BYTES, limit};
use crate::disk::{self, work};
use crate::error::{Failure, Result};
use crate::once::Promised;
use crate::request::Caller;

/// Most records of a kind, of all keys together and of one key.
const MAX_COUNT: usize = 5000;
const OF_KEY_MAX_COUNT: usize = 500;
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 24;
/// Bytes of a name and of a description.
const NAME_MAX_BYTES: usize = 255;
const DESCRIPTION_MAX_BYTES: usize = 1024;

/// A kind of record.
pub(crate) trait Kind: Serialize + DeserializeOwned + Clone + Send + 'static {
    /// The word for one record.
    const WORD: &'static str;
    /// The directory.
    const DIR: &'static str;
    /// Prefix of ids.
    const PREFIX: &'static str;

    /// The name that its user gave it.
    fn name(&self) -> &str;
}

/// One record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record<T> {
    pub(crate) id: String,
    /// The key that made it.
    owner: KeyId,
    pub(crate) created_ms: u64,
    pub(crate) updated_ms: u64,
    pub(crate) what: T,
}

/// All records of a kind. Clones share them.
#[derive(Debug)]
pub(crate) struct Records<T> {
    dir: PathBuf,
    changing: Arc<Mutex<()>>,
    /// `None` until it is first asked for.
    known: Arc<Mutex<Option<Index>>>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Records<T> {
    fn clone(&self) -> Self {
        let (changing, known) = (Arc::clone(&self.changing), Arc::clone(&self.known));
        Self { dir: self.dir.clone(), changing, known, kind: PhantomData }
    }
}

/// Checks the texts that a user wrote.
///
/// # Errors
/// 400.
pub(crate) fn check_words(name: &str, description: Option<&str>) -> Result<()> {
    if name.trim().is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
        return Err(Failure::bad(format!("name: 1 to {NAME_MAX_BYTES} bytes without control characters")));
    }
    if description.is_some_and(|text| text.len() > DESCRIPTION_MAX_BYTES) {
        return Err(Failure::bad(format!("description: at most {DESCRIPTION_MAX_BYTES} bytes")));
    }
    Ok(())
}

fn missing<T: Kind>(named: &str) -> Failure {
    Failure::not_found(format!("{} {} not found", T::WORD, atoll_core::error::shorten(named)))
}

impl<T: Kind> Records<T> {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self::at(engine.spool_dir().join(T::DIR))
    }

    fn at(dir: PathBuf) -> Self {
        Self { dir, changing: Arc::default(), known: Arc::default(), kind: PhantomData }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave half done.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of an id; `None` for a text that is no id, because it becomes part of a path.
    fn file(id: &str) -> Option<String> {
        let digits = id.strip_prefix(T::PREFIX)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (digits.len() == ID_DIGITS && digits.bytes().all(hex)).then(|| format!("{id}.json"))
    }

    fn read(&self, id: &str) -> io::Result<Option<Record<T>>> {
        let Some(file) = Self::file(id) else { return Ok(None) };
        match fs::read(self.dir.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(serde_json::from_slice(&read?)?)),
        }
    }

    fn save(&self, record: &Record<T>) -> io::Result<()> {
        disk::save(&self.dir, &format!("{}.json", record.id), &serde_json::to_vec(record)?)
    }

    /// Asks the index, or changes it.
    fn known<R>(&self, ask: impl FnOnce(&mut Index) -> R) -> io::Result<R> {
        // A task that panics while it holds the lock leaves an index that is whole, or none.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let index = known.take().map_or_else(|| self.index(), Ok)?;
        Ok(ask(known.insert(index)))
    }

    fn index(&self) -> io::Result<Index> {
        let mut index = Index::default();
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(index),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            if let Some(record) = self.readable(id) {
                index.add(&record.owner, record.created_ms, &record.id);
            }
        }
        Ok(index)
    }

    /// A record, unless it is gone or cannot be read.
    fn readable(&self, id: &str) -> Option<Record<T>> {
        self.read(id).unwrap_or_else(|error| {
            tracing::warn!(%error, id, "a record cannot be read");
            None
        })
    }

    /// The records of a key, or of all, newest first. Each is read when it is its turn.
    fn of(&self, owner: Option<&KeyId>) -> io::Result<impl Iterator<Item = Record<T>>> {
        let ids = self.known(|index| index.ids(owner))?;
        Ok(ids.into_iter().filter_map(|id| self.readable(&id)))
    }

    fn insert(&self, owner: KeyId, what: T, promise: &Promise) -> io::Result<Option<Record<T>>> {
        let _lock = self.lock();
        let id = format!("{}{}", T::PREFIX, promise.digits(ID_DIGITS));
        // An earlier server made it, and was killed before it answered.
        if let Some(made) = self.read(&id)? {
            return Ok(Some(made));
        }
        fs::create_dir_all(&self.dir)?;
        let (all, own) = self.known(|index| index.counts(&owner))?;
        if all >= MAX_COUNT || own >= OF_KEY_MAX_COUNT {
            return Ok(None);
        }
        let now = now_ms();
        let record = Record { id, owner, created_ms: now, updated_ms: now, what };
        self.save(&record)?;
        self.known(|index| index.add(&record.owner, record.created_ms, &record.id))?;
        Ok(Some(record))
    }

    fn replace(&self, id: &str, change: impl FnOnce(&mut T) -> Result<()>) -> io::Result<Result<Record<T>>> {
        let _lock = self.lock();
        let Some(mut record) = self.read(id)? else { return Ok(Err(missing::<T>(id))) };
        if let Err(failure) = change(&mut record.what) {
            return Ok(Err(failure));
        }
        record.updated_ms = now_ms().max(record.updated_ms);
        self.save(&record)?;
        Ok(Ok(record))
    }

    fn delete(&self, record: &Record<T>) -> io::Result<()> {
        let _lock = self.lock();
        let Some(file) = Self::file(&record.id) else { return Ok(()) };
        match fs::remove_file(self.dir.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => disk::flush_dir(&self.dir)?,
        }
        self.known(|index| index.remove(&record.owner, record.created_ms, &record.id))
    }

    /// A page of the records of a key, or of all; `None` when the page is to begin after a record that the list does
    /// not have. No more than the page is in memory.
    fn select(&self, owner: Option<&KeyId>, query: &List, limit: usize) -> io::Result<Option<Selected<T>>> {
        let (mut page, mut bytes) = (Selected { items: Vec::new(), total: 0, more: false }, 0);
        let mut after = query.starting_after.as_deref().filter(|after| !after.is_empty());
        for record in self.of(owner)?.filter(|record| query.wants(record)) {
            page.total += 1;
            match after {
                Some(id) if id == record.id => after = None,
                Some(_) => {}
                None if !page.more && page.items.len() < limit && bytes < PAGE_MAX_BYTES => {
                    bytes += serde_json::to_vec(&record.what)?.len();
                    page.items.push(record);
                }
                None => page.more = true,
            }
        }
        Ok(after.is_none().then_some(page))
    }

    /// A new record of the caller's, with the id that its request's promise gives.
    ///
    /// # Errors
    /// 429 where there are too many.
    pub(crate) async fn create<S>(
        &self,
        caller: &Caller<S>,
        what: T,
        Promised(promise): Promised,
    ) -> Result<Record<T>> {
        let (records, owner) = (self.clone(), caller.key());
        let made = work(move || records.insert(owner, what, &promise)).await?;
        made.ok_or_else(|| {
            let why = format!("there are too many ({}): delete some", T::WORD);
            Failure::new(StatusCode::TOO_MANY_REQUESTS, "too_many", why)
        })
    }

    /// The record with this id that the caller may know of.
    ///
    /// # Errors
    /// 404.
    pub(crate) async fn find<S>(&self, caller: &Caller<S>, id: &str) -> Result<Record<T>> {
        let (records, wanted) = (self.clone(), id.to_owned());
        let found = work(move || records.read(&wanted)).await?;
        found.filter(|record| sees(caller, record)).ok_or_else(|| missing::<T>(id))
    }

    /// The same, or the newest of this name.
    ///
    /// # Errors
    /// 404.
    pub(crate) async fn named<S>(&self, caller: &Caller<S>, named: &str) -> Result<Record<T>> {
        if Self::file(named).is_some() {
            return self.find(caller, named).await;
        }
        let (records, owner, name) = (self.clone(), caller.sees().cloned(), named.to_owned());
        let of_name =
            work(move || Ok(records.of(owner.as_ref())?.find(|record| record.what.name() == name))).await?;
        of_name.ok_or_else(|| missing::<T>(named))
    }

    /// Changes a record.
    ///
    /// # Errors
    /// 404, and the error of `change`: then nothing is changed.
    pub(crate) async fn change<S>(
        &self,
        caller: &Caller<S>,
        id: &str,
        change: impl FnOnce(&mut T) -> Result<()> + Send + 'static,
    ) -> Result<Record<T>> {
        let known = self.find(caller, id).await?;
        let records = self.clone();
        work(move || records.replace(&known.id, change)).await?
    }

    /// Removes a record; gives the removed record.
    ///
    /// # Errors
    /// 404.
    pub(crate) async fn remove<S>(&self, caller: &Caller<S>, id: &str) -> Result<Record<T>> {
        let known = self.find(caller, id).await?;
        let (records, gone) = (self.clone(), known.clone());
        work(move || records.delete(&gone)).await?;
        Ok(known)
    }

    /// A page of a list, as the clients read it, with the records under `plural`.
    ///
    /// # Errors
    /// 400.
    pub(crate) async fn page<S>(
        &self,
        caller: &Caller<S>,
        plural: &str,
        query: List,
        view: impl Fn(&Record<T>) -> Value,
    ) -> Result<Value> {
        let limit = limit(query.limit)?;
        let (records, owner) = (self.clone(), caller.sees().cloned());
        let found = work(move || records.select(owner.as_ref(), &query, limit)).await?;
        let found = found.ok_or_else(|| Failure::bad("starting_after: is no id in this list"))?;
        let items: Vec<Value> = found.items.iter().map(view).collect();
        let mut page = json!({"has_more": found.more, "total_count": found.total});
        page[plural] = items.into();
        Ok(page)
    }
}

fn sees<S, T>(caller: &Caller<S>, record: &Record<T>) -> bool {
    caller.sees().is_none_or(|key| *key == record.owner)
}

/// A page of a list.
#[derive(Debug)]
struct Selected<T> {
    items: Vec<Record<T>>,
    /// How many the whole list has.
    total: usize,
    /// Whether more follow.
    more: bool,
}

/// The records to list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct List {
    id: Option<String>,
    limit: Option<i64>,
    name: Option<String>,
    search: Option<String>,
    starting_after: Option<String>,
}

impl List {
    fn wants<T: Kind>(&self, record: &Record<T>) -> bool {
        let has = |text: &str, part: &Option<String>| part.as_deref().is_none_or(|part| text.contains(part));
        let name = record.what.name();
        has(name, &self.name)
            && (has(name, &self.search) || has(&record.id, &self.search))
            && self.id.as_deref().is_none_or(|id| id.is_empty() || id == record.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Note(String);

    impl Kind for Note {
        const WORD: &'static str = "Note";
        const DIR: &'static str = "notes";
        const PREFIX: &'static str = "nte_";

        fn name(&self) -> &str {
            &self.0
        }
    }

    fn records() -> (tempfile::TempDir, Records<Note>) {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::at(dir.path().join("notes"));
        (dir, records)
    }

    #[test]
    fn kept_changed_and_gone() {
        let (_dir, records) = records();
        assert_eq!(records.of(None).unwrap().count(), 0);
        let (owner, promise) = (KeyId::from_parts(1, 1), Promise::new().unwrap());
        let made = records.insert(owner.clone(), Note("one".into()), &promise).unwrap().unwrap();
        // The same request, sent again to the next server.
        let again = records.insert(owner, Note("one".into()), &promise).unwrap().unwrap();
        assert_eq!((&again.id, records.of(None).unwrap().count()), (&made.id, 1));
        let changed = records.replace(&made.id, |note| {
            note.0 = "two".into();
            Ok(())
        });
        assert_eq!(changed.unwrap().unwrap().what, Note("two".into()));
        let refused = records.replace(&made.id, |note| {
            note.0 = "three".into();
            Err(Failure::bad("no"))
        });
        assert!(refused.unwrap().is_err());
        assert_eq!(records.read(&made.id).unwrap().unwrap().what, Note("two".into()));
        records.delete(&made).unwrap();
        assert_eq!(records.of(None).unwrap().count(), 0);
        assert!(records.read(&made.id).unwrap().is_none());
        assert!(records.replace(&made.id, |_| Ok(())).unwrap().is_err());
    }

    #[test]
    fn ids_are_no_paths() {
        for bad in [
            "",
            "nte_",
            "nte_../../../../../../etc",
            "xyz_0123456789abcdef01234567",
            "nte_0123456789ABCDEF01234567",
        ] {
            assert!(Records::<Note>::file(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn one_key_has_so_many() {
        let (_dir, records) = records();
        let key = KeyId::from_parts(1, 1);
        fs::create_dir_all(&records.dir).unwrap();
        for number in 0..OF_KEY_MAX_COUNT {
            let record = Record {
                id: format!("nte_{number:024x}"),
                owner: key.clone(),
                created_ms: 1,
                updated_ms: 1,
                what: Note("x".into()),
            };
            let path = records.dir.join(format!("{}.json", record.id));
            fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
        }
        let insert = |key| records.insert(key, Note("x".into()), &Promise::new().unwrap()).unwrap();
        assert!(insert(key).is_none());
        assert!(insert(KeyId::from_parts(1, 2)).is_some());
    }

    #[test]
    fn a_page_has_so_many_bytes() {
        let (_dir, records) = records();
        let key = KeyId::from_parts(1, 1);
        for _ in 0..3 {
            let note = Note("x".repeat(PAGE_MAX_BYTES / 2));
            records.insert(key.clone(), note, &Promise::new().unwrap()).unwrap().unwrap();
        }
        let first = records.select(Some(&key), &List::default(), 100).unwrap().unwrap();
        assert_eq!((first.items.len(), first.total, first.more), (2, 3, true));
        let rest = List { starting_after: Some(first.items[1].id.clone()), ..List::default() };
        let rest = records.select(Some(&key), &rest, 100).unwrap().unwrap();
        assert_eq!((rest.items.len(), rest.total, rest.more), (1, 3, false));
    }

    #[test]
    fn a_list_reads_the_records_of_its_caller() {
        let (_dir, records) = records();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(1, random));
        let insert = |owner: &KeyId, name: &str| {
            records.insert(owner.clone(), Note(name.into()), &Promise::new().unwrap()).unwrap().unwrap()
        };
        let theirs = insert(&other, "theirs");
        let made: Vec<_> = ["a", "b", "c", "ab"].map(|name| insert(&one, name)).into();
        // Nothing else is read: an unreadable record of another key is no record any more.
        fs::write(records.dir.join(format!("{}.json", theirs.id)), "nothing").unwrap();
        let select = |records: &Records<Note>, owner: &KeyId, query: List| {
            let page = records.select(Some(owner), &query, 2).unwrap()?;
            Some((
                page.items.into_iter().map(|record| record.what.0).collect::<Vec<_>>(),
                page.total,
                page.more,
            ))
        };
        let mut named: Vec<_> =
            made.iter().map(|record| (record.created_ms, &record.id, &record.what.0)).collect();
        named.sort_unstable_by(|one, other| other.cmp(one));
        let names = |from: usize| {
            named[from..from + 2].iter().map(|(_, _, name)| (*name).clone()).collect::<Vec<_>>()
        };
        // The next server has the same.
        for records in [&records, &Records::at(records.dir.clone())] {
            let after = |id: &str| List { starting_after: Some(id.to_owned()), ..List::default() };
            assert_eq!(select(records, &one, List::default()), Some((names(0), 4, true)));
            assert_eq!(select(records, &one, after(named[1].1)), Some((names(2), 4, false)));
            assert_eq!(select(records, &one, after(&theirs.id)), None);
            let search = List { name: Some("b".into()), ..List::default() };
            assert_eq!(select(records, &one, search).unwrap().1, 2);
            assert_eq!(select(records, &other, List::default()), Some((Vec::new(), 0, false)));
        }
    }
}
