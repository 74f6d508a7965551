//! Images that one store gives to others.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use atoll_core::Code;
use atoll_image::{Digest, Document, Elsewhere, Found, Image, Images, NoProgress, Settings};
use atoll_testing::{Entry, Layout};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

/// A place where all nodes find layers.
#[derive(Debug, Default)]
struct Place(Mutex<BTreeMap<Digest, Vec<u8>>>);

impl Elsewhere for Place {
    fn layer<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<Option<Found>>> {
        let found = self.0.lock().unwrap().get(diff_id).cloned();
        let stream = |bytes: Vec<u8>| {
            let pieces: Vec<_> = bytes.chunks(100).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            Found { place: "there".to_owned(), coming: futures::stream::iter(pieces).boxed() }
        };
        async move { Ok(found.map(stream)) }.boxed()
    }

    fn has<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<bool>> {
        let has = self.0.lock().unwrap().contains_key(diff_id);
        async move { Ok(has) }.boxed()
    }

    fn damaged<'a>(&'a self, diff_id: &'a Digest, place: &'a str) -> BoxFuture<'a, ()> {
        assert_eq!(place, "there");
        self.0.lock().unwrap().remove(diff_id);
        async {}.boxed()
    }
}

fn images(dir: &Path, place: &Arc<Place>) -> Images {
    let settings = Settings { keep_packed: true, ..Settings::default() };
    let images = Images::open_with(dir, settings).unwrap();
    images.look_elsewhere(Arc::<Place>::clone(place));
    images
}

fn layout() -> Layout {
    let layers = [
        vec![Entry::file("a", b"one"), Entry::file("c", b"kept")],
        vec![Entry::file(".wh.a", b""), Entry::file("b", b"two"), Entry::hardlink("d", "b")],
    ];
    Layout::new(&layers).config(&["--config.env=A=b"])
}

/// Puts the layers of an image where all nodes find them; gives the document that the other nodes need besides.
fn give(images: &Images, image: &Image, place: &Place) -> Document {
    let document = images.document(&image.digest).unwrap();
    for layer in document.layers() {
        let mut packed = Vec::new();
        assert!(images.pack(&layer, &mut packed).unwrap(), "kept");
        place.0.lock().unwrap().insert(layer, packed);
    }
    Document::parse(&document.to_text().unwrap(), image.digest.as_str()).unwrap()
}

fn names(of: &[(&str, &Digest)]) -> BTreeMap<String, Digest> {
    of.iter().map(|(name, digest)| ((*name).to_owned(), (*digest).clone())).collect()
}

#[tokio::test]
async fn what_one_loaded_another_takes() {
    let (work, place) = (tempfile::tempdir().unwrap(), Arc::new(Place::default()));
    let (one, two) = (images(&work.path().join("one"), &place), images(&work.path().join("two"), &place));
    let loaded = one.load(&layout().directory(), Some("app"), &NoProgress).await.unwrap().remove(0);
    let document = give(&one, &loaded, &place);
    assert_eq!(document.image(vec!["app".to_owned()]).size_bytes, loaded.size_bytes);

    let taken = two.take(&document).await.unwrap();
    assert_eq!((&taken.digest, &taken.defaults), (&loaded.digest, &loaded.defaults));
    assert!(taken.names.is_empty());
    let file =
        |image: &Image, layer: usize, name: &str| std::fs::read(image.layers[layer].join(name)).unwrap();
    for (layer, name) in [(0, "a"), (0, "c"), (1, "b"), (1, "d")] {
        assert_eq!(file(&taken, layer, name), file(&loaded, layer, name), "{name}");
    }
    // A layer that came from another node is not kept packed, and a layer that is here is not fetched again.
    assert!(document.layers().iter().all(|layer| !two.is_packed(layer)));
    place.0.lock().unwrap().clear();
    assert_eq!(two.take(&document).await.unwrap().digest, loaded.digest);
    for layer in document.layers() {
        one.forget_packed(&layer).unwrap();
        assert!(!one.pack(&layer, io::sink()).unwrap());
    }
    // Loaded again, it can be given again.
    one.load(&layout().directory(), Some("app"), &NoProgress).await.unwrap();
    give(&one, &loaded, &place);
}

#[tokio::test]
async fn what_is_not_what_it_should_be_is_refused() {
    let (work, place) = (tempfile::tempdir().unwrap(), Arc::new(Place::default()));
    let (one, two) = (images(&work.path().join("one"), &place), images(&work.path().join("two"), &place));
    let loaded = one.load(&layout().directory(), Some("app"), &NoProgress).await.unwrap().remove(0);
    let document = give(&one, &loaded, &place);
    let whole = place.0.lock().unwrap().clone();
    let [first, second] = whole.keys().cloned().collect::<Vec<_>>().try_into().unwrap();
    let short = whole[&first][..whole[&first].len() - 1].to_vec();
    let long = [whole[&first].clone(), b"x".to_vec()].concat();
    for damage in [Vec::new(), b"not a layer".to_vec(), short, long, whole[&second].clone()] {
        place.0.lock().unwrap().insert(first.clone(), damage);
        let code = two.take(&document).await.unwrap_err().to_core().code;
        assert!(matches!(code, Code::DigestMismatch | Code::ImageInvalid), "{code:?}");
        assert!(two.list().is_empty());
    }
    place.0.lock().unwrap().remove(&first);
    assert_eq!(two.take(&document).await.unwrap_err().to_core().code, Code::ObjectsUnavailable);
    *place.0.lock().unwrap() = whole;
    two.take(&document).await.unwrap();
    let text = document.to_text().unwrap();
    assert!(Document::parse(&text, second.as_str()).is_err(), "another image's");
    assert!(Document::parse(&text.replace("\"format\":1", "\"format\":2"), loaded.digest.as_str()).is_err());
    // A packed layer that was kept is checked, too.
    let packed = work.path().join("one/packed").join(first.hex());
    std::fs::write(&packed, b"damaged").unwrap();
    assert!(one.pack(&first, io::sink()).is_err());
}

/// The names that other nodes do not know yet.
fn unshared(images: &Images) -> BTreeMap<String, Digest> {
    images.unshared().into_iter().map(|(name, (digest, _said_ms))| (name, digest)).collect()
}

#[tokio::test]
async fn names_follow_what_all_say() {
    let (work, place) = (tempfile::tempdir().unwrap(), Arc::new(Place::default()));
    let dir = work.path().join("one");
    let one = images(&dir, &place);
    let first =
        one.load(&layout().directory(), Some("app"), &NoProgress).await.unwrap().remove(0).digest.clone();
    let other = Layout::new(&[vec![Entry::file("x", b"other")]]);
    let second =
        one.load(&other.directory(), Some("other"), &NoProgress).await.unwrap().remove(0).digest.clone();
    let follow = async |images: &Images, said: &[(&str, &Digest)], there: &[&Digest], used: &[&Digest]| {
        let set = |of: &[&Digest]| of.iter().map(|digest| (*digest).clone()).collect::<BTreeSet<_>>();
        images.follow(names(said), set(there), set(used)).await.unwrap()
    };
    // A name that the other nodes do not know yet stays, even if they do not list it.
    follow(&one, &[("app", &second)], &[&second], &[]).await;
    assert_eq!(unshared(&one), names(&[("app", &first), ("other", &second)]));
    one.shared(&first, &["app".to_owned()]).await.unwrap();
    one.shared(&first, &["other".to_owned()]).await.unwrap();
    assert_eq!(unshared(&one), names(&[("other", &second)]), "another image's name stays");
    one.shared(&second, &["other".to_owned()]).await.unwrap();
    drop(one);

    // Which names are shared is remembered. One name moves, one is new, and one stands for an image that is not here.
    let one = images(&dir, &place);
    assert!(one.unshared().is_empty());
    let away = Digest::of(b"away");
    follow(&one, &[("app", &second), ("new", &first), ("far", &away)], &[&first, &second, &away], &[]).await;
    assert_eq!(one.resolve("app").unwrap().names, ["app"]);
    assert_eq!(one.resolve("app").unwrap().digest, second);
    assert_eq!(one.resolve("new").unwrap().digest, first);
    assert!(one.resolve("other").is_err() && one.resolve("far").is_err());
    // A name that is given to another image here is not shared any more.
    one.tag(&first, "app").await.unwrap();
    assert_eq!(unshared(&one), names(&[("app", &first)]));
    one.shared(&first, &["app".to_owned()]).await.unwrap();

    // An image that no node has any more goes, unless it is needed.
    one.tag(&second, "other").await.unwrap();
    one.shared(&second, &["other".to_owned()]).await.unwrap();
    follow(&one, &[], &[], &[&first]).await;
    assert!(one.resolve(second.as_str()).is_err() && one.resolve("app").is_err());
    assert!(one.resolve(first.as_str()).unwrap().names.is_empty());

    // So does an image whose last name has moved to another image.
    let mut loaded = Vec::new();
    for name in ["moves", "stays"] {
        let image = Layout::new(&[vec![Entry::file(name, b"x")]]);
        let image = one.load(&image.directory(), Some(name), &NoProgress).await.unwrap().remove(0);
        one.shared(&image.digest, &[name.to_owned()]).await.unwrap();
        loaded.push(image.digest.clone());
    }
    let (old, new) = (&loaded[0], &loaded[1]);
    follow(&one, &[("moves", new), ("stays", new)], &[new], &[]).await;
    assert_eq!(one.resolve("moves").unwrap().names, ["moves", "stays"]);
    assert!(one.resolve(old.as_str()).is_err());
}
