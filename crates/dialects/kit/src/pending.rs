//! Work that takes longer than a client waits: snapshots, images, builds.
//!
//! The call answers when the work is done, or after a few seconds with the id that the result will have; the client
//! polls. Work under way is noted in memory only: a server that ends meanwhile forgets it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::KeyId;
use atoll_core::shares::Shares;
use atoll_core::{Code, Error};

use crate::sentence;

/// Failed work that is remembered, of all keys and of one.
const REMEMBERED_MAX_COUNT: usize = 1000;
const REMEMBERED_OF_KEY_MAX_COUNT: usize = 100;
/// Work at once, of all keys. A key leaves as much to others as it has: 32 alone.
const UNDER_WAY_MAX_COUNT: usize = 64;

/// A thing that is being made, as the client sees it.
pub trait Pending: Clone + Send + 'static {
    /// The id under which the client polls.
    fn id(&self) -> &str;
    /// It was not made: `why`.
    fn fail(&mut self, why: String);
}

#[derive(Debug, Clone)]
struct Item<T> {
    view: T,
    /// The key that began it.
    owner: KeyId,
    failed: bool,
}

#[derive(Debug)]
struct Shelf<T> {
    by_id: BTreeMap<String, Item<T>>,
    /// What is under way, by the key that began it.
    under_way: Shares<KeyId>,
    /// Failed ones, the oldest first.
    failed: VecDeque<String>,
}

impl<T> Shelf<T> {
    /// Forgets the oldest failed work, of one key or of all.
    fn forget_oldest(&mut self, owner: Option<&KeyId>) {
        let is_of = |id: &String| self.by_id.get(id).is_none_or(|item| item.is_seen_by(owner));
        if let Some(at) = self.failed.iter().position(is_of)
            && let Some(id) = self.failed.remove(at)
        {
            self.by_id.remove(&id);
        }
    }

    /// How much failed work of a key is remembered.
    fn failed_of(&self, owner: &KeyId) -> usize {
        let is_of = |id: &&String| self.by_id.get(*id).is_some_and(|item| item.owner == *owner);
        self.failed.iter().filter(is_of).count()
    }
}

/// Work that is under way or has failed. Each entry is visible to the API key that began it, and to keys that see
/// everything.
#[derive(Debug)]
pub struct Works<T> {
    shelf: Arc<Mutex<Shelf<T>>>,
}

impl<T> Clone for Works<T> {
    fn clone(&self) -> Self {
        Self { shelf: Arc::clone(&self.shelf) }
    }
}

impl<T> Default for Works<T> {
    fn default() -> Self {
        let shelf = Shelf { by_id: BTreeMap::new(), under_way: Shares::default(), failed: VecDeque::new() };
        Self { shelf: Arc::new(Mutex::new(shelf)) }
    }
}

impl<T: Pending> Works<T> {
    fn shelf(&self) -> MutexGuard<'_, Shelf<T>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, view: T, owner: KeyId) -> Result<(), Error> {
        let mut shelf = self.shelf();
        if !shelf.under_way.take(&owner, 1, UNDER_WAY_MAX_COUNT) {
            let message = "too many snapshots are being made already, and a key leaves some to others";
            return Err(Error::new(Code::LimitExceeded, message).hint("try again when some are done"));
        }
        shelf.by_id.insert(view.id().to_owned(), Item { view, owner, failed: false });
        Ok(())
    }

    fn end(&self, id: &str, owner: &KeyId, failure: Option<&Error>) {
        let mut shelf = self.shelf();
        shelf.under_way.give_back(owner, 1);
        let Some(error) = failure else {
            shelf.by_id.remove(id);
            return;
        };
        let Some(item) = shelf.by_id.get_mut(id) else { return };
        item.failed = true;
        item.view.fail(sentence(error));
        shelf.failed.push_back(id.to_owned());
        if shelf.failed_of(owner) > REMEMBERED_OF_KEY_MAX_COUNT {
            shelf.forget_oldest(Some(owner));
        }
        if shelf.failed.len() > REMEMBERED_MAX_COUNT {
            shelf.forget_oldest(None);
        }
    }

    /// The work with this id, under way or failed, if the key may see it; `None` sees all.
    #[must_use]
    pub fn find(&self, id: &str, sees: Option<&KeyId>) -> Option<T> {
        self.shelf().by_id.get(id).filter(|item| item.is_seen_by(sees)).map(|item| item.view.clone())
    }

    /// Forgets work that failed. Says whether it did; `None` when the key sees no such work.
    pub fn forget(&self, id: &str, sees: Option<&KeyId>) -> Option<bool> {
        let mut shelf = self.shelf();
        let failed = shelf.by_id.get(id).filter(|item| item.is_seen_by(sees))?.failed;
        if failed {
            shelf.by_id.remove(id);
            shelf.failed.retain(|other| other != id);
        }
        Some(failed)
    }

    /// The work under way that the key may see.
    #[must_use]
    pub fn under_way(&self, sees: Option<&KeyId>) -> Vec<T> {
        let shelf = self.shelf();
        let seen = shelf.by_id.values().filter(|item| !item.failed && item.is_seen_by(sees));
        seen.map(|item| item.view.clone()).collect()
    }

    /// Runs `making` in a task of its own. Gives its outcome if it ends within `wait`; else it goes on, and the client
    /// polls.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when too much work is under way.
    pub async fn run<R: Send + 'static>(
        &self,
        view: T,
        owner: KeyId,
        wait: Duration,
        making: impl Future<Output = Result<R, Error>> + Send + 'static,
    ) -> Result<Option<Result<R, Error>>, Error> {
        let (works, id) = (self.clone(), view.id().to_owned());
        works.begin(view, owner.clone())?;
        let making = tokio::spawn(async move {
            let outcome = tokio::spawn(making).await;
            let outcome = outcome
                .unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "making the snapshot broke off")));
            if let Err(error) = &outcome {
                tracing::info!(%error, "a snapshot could not be made");
            }
            works.end(&id, &owner, outcome.as_ref().err());
            outcome
        });
        Ok(tokio::time::timeout(wait, making).await.ok().and_then(Result::ok))
    }
}

impl<T> Item<T> {
    fn is_seen_by(&self, key: Option<&KeyId>) -> bool {
        key.is_none_or(|key| *key == self.owner)
    }
}

/// Runs work that the client may not wait for: answers within `wait`, `None` when the work goes on.
pub async fn within<R: Send + 'static>(
    wait: Duration,
    doing: impl Future<Output = R> + Send + 'static,
) -> Option<R> {
    tokio::time::timeout(wait, tokio::spawn(doing)).await.ok().and_then(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct View(String, Option<String>);

    impl Pending for View {
        fn id(&self) -> &str {
            &self.0
        }
        fn fail(&mut self, why: String) {
            self.1 = Some(why);
        }
    }

    fn view(id: &str) -> View {
        View(id.to_owned(), None)
    }

    #[tokio::test]
    async fn work_is_its_owners() {
        let works = Works::<View>::default();
        let (mine, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let never = std::future::pending::<Result<(), Error>>();
        let ended = works.run(view("a"), mine.clone(), Duration::ZERO, never).await.unwrap();
        assert!(ended.is_none());
        assert_eq!(works.under_way(Some(&mine)), [view("a")]);
        assert_eq!(works.under_way(None), [view("a")]);
        assert_eq!((works.under_way(Some(&other)), works.find("a", Some(&other))), (vec![], None));
        assert_eq!((works.forget("a", Some(&other)), works.forget("a", Some(&mine))), (None, Some(false)));
    }

    #[tokio::test]
    async fn a_key_leaves_some_to_others() {
        let works = Works::<View>::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let begin = async |key: &KeyId, id: String| {
            let never = std::future::pending::<Result<(), Error>>();
            works.run(view(&id), key.clone(), Duration::ZERO, never).await.is_ok()
        };
        let mut begun = 0;
        while begin(&one, begun.to_string()).await {
            begun += 1;
        }
        assert_eq!(begun, UNDER_WAY_MAX_COUNT / 2);
        assert!(begin(&other, "other's".to_owned()).await);
        assert!(!begin(&one, "more".to_owned()).await);
        // One for what the other has, and one for itself.
        works.end("0", &one, None);
        works.end("1", &one, None);
        assert!(begin(&one, "again".to_owned()).await, "a place is given back");
    }

    #[tokio::test]
    async fn failures_of_one_key_push_out_none_of_anothers() {
        let works = Works::<View>::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let fail = async |key: &KeyId, id: String| {
            let fails = async { Err::<(), _>(Error::new(Code::Timeout, "too late")) };
            let ended = works.run(view(&id), key.clone(), Duration::from_secs(60), fails).await.unwrap();
            assert!(ended.unwrap().is_err());
        };
        fail(&other, "other's".to_owned()).await;
        for number in 0..=REMEMBERED_MAX_COUNT {
            fail(&one, number.to_string()).await;
        }
        assert!(works.find("other's", None).is_some());
        let newest = REMEMBERED_MAX_COUNT.to_string();
        assert!(works.find("0", None).is_none() && works.find(&newest, Some(&one)).is_some());
    }

    #[tokio::test]
    async fn failures_are_remembered_until_they_are_forgotten() {
        let works = Works::<View>::default();
        let key = KeyId::from_parts(1, 1);
        let wait = Duration::from_secs(60);
        let fails = async { Err::<(), _>(Error::new(Code::Timeout, "too late").hint("try again")) };
        let ended = works.run(view("a"), key.clone(), wait, fails).await.unwrap();
        assert_eq!(ended.unwrap().unwrap_err().code, Code::Timeout);
        assert_eq!(works.find("a", Some(&key)).unwrap().1.unwrap(), "too late; try again");
        assert_eq!(works.under_way(None), []);
        assert_eq!((works.forget("a", None), works.forget("a", None)), (Some(true), None));
        assert_eq!(works.run(view("b"), key, wait, async { Ok(7) }).await.unwrap(), Some(Ok(7)));
        assert_eq!(works.find("b", None), None);
    }
}
