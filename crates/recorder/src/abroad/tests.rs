//! Journals that go from host to host, whole and cut, through a place where somebody else may write.

use zeroize::Zeroizing;

use super::*;
use crate::event::{Lost, RecorderEvent, What};
use crate::{Config, Mode, Recorder, Report, Retention, SigningKey};

/// A host: it has one key with all others.
struct Host {
    dir: tempfile::TempDir,
    recorder: Recorder,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recorder = open(dir.path());
        Self { dir, recorder }
    }

    async fn says(&self, text: &str) {
        self.recorder.note(&sandbox(), what(text));
        self.recorder.signed(&sandbox()).await.unwrap();
    }

    /// What another host finds of the journal in the place that all hosts share.
    fn send(&self) -> tempfile::TempDir {
        let bucket = tempfile::tempdir().unwrap();
        let there = bucket.path().join(sandbox().as_str());
        fs::create_dir(&there).unwrap();
        for piece in pieces(self.recorder.dir(), &sandbox()).unwrap() {
            fs::write(there.join(piece.name()), piece.content().unwrap()).unwrap();
        }
        bucket
    }

    async fn goes_on(&self, with: &Path) -> Adopted {
        let adopted = self.recorder.adopt(&sandbox(), with).unwrap();
        self.recorder.begin(&sandbox(), None, Mode::On);
        self.recorder.signed(&sandbox()).await.unwrap();
        adopted
    }

    fn whats(&self) -> Vec<(u64, What)> {
        let mut reader = self.recorder.reader(&sandbox(), 1);
        let mut all = Vec::new();
        loop {
            let events = reader.read().unwrap();
            if events.is_empty() {
                return all;
            }
            all.extend(events.into_iter().map(|event| (event.number, event.event.what)));
        }
    }

    fn report(&self) -> Report {
        verify(self.recorder.dir(), &sandbox(), &self.recorder.public_key(), None).unwrap()
    }

    fn set_aside(&self) -> Vec<PathBuf> {
        aside(self.recorder.dir()).unwrap()
    }

    /// The server ends, and the next one starts.
    async fn restart(&mut self) {
        self.recorder.close().await;
        self.recorder = open(self.dir.path());
    }
}

fn open(dir: &Path) -> Recorder {
    let key = SigningKey::from_seed(&Zeroizing::new([7; 32])).unwrap();
    Recorder::open(Config { dir: dir.join("trace"), key, keep: Retention::default() }).unwrap()
}

fn sandbox() -> SandboxId {
    SandboxId::from_parts(1, 1)
}

fn what(text: &str) -> What {
    What::BudgetExhausted { reason: text.to_owned() }
}

fn went_on(clean: bool) -> What {
    What::Recorder(RecorderEvent::WentOn { clean })
}

/// A host that recorded one thing, which is signed.
async fn one_that_said(text: &str) -> Host {
    let host = Host::new();
    host.recorder.begin(&sandbox(), Some("k1".to_owned()), Mode::On);
    host.says(text).await;
    host
}

#[tokio::test]
async fn a_journal_that_moves_is_one_journal() {
    let one = one_that_said("on the first").await;
    one.recorder.pause(&sandbox()).await.unwrap();
    one.recorder.note(&sandbox(), what("too late"));
    let mut two = Host::new();
    let adopted = two.goes_on(one.send().path()).await;
    assert_eq!((adopted.last, adopted.refused.len()), (3, 0));
    two.says("on the second").await;
    let all = [
        (1, What::Recorder(RecorderEvent::Began { mode: "on".to_owned() })),
        (2, what("on the first")),
        (3, What::Recorder(RecorderEvent::Paused)),
        (4, went_on(true)),
        (5, what("on the second")),
    ];
    assert_eq!(two.whats(), all);
    let report = two.report();
    assert_eq!((report.findings.len(), report.gaps.len(), report.signed), (0, 0, 5));
    assert_eq!(two.recorder.reader(&sandbox(), 1).owner().unwrap(), Some(Some("k1".to_owned())));
    // A restart there is a restart, and no arrival.
    two.restart().await;
    two.recorder.begin(&sandbox(), None, Mode::On);
    two.recorder.signed(&sandbox()).await.unwrap();
    assert_eq!(two.whats()[5..], [(6, What::Recorder(RecorderEvent::Paused)), (7, went_on(true))]);
    // And back: the first host has nothing of its own any more, and gets all of it.
    one.recorder.forget(&sandbox()).unwrap();
    two.recorder.pause(&sandbox()).await.unwrap();
    one.goes_on(two.send().path()).await;
    one.recorder.end(&sandbox());
    one.recorder.close().await;
    assert!(one.recorder.reader(&sandbox(), 1).has_ended().unwrap());
    let report = one.report();
    assert_eq!((report.findings.len(), report.gaps.len(), report.last, report.ended), (0, 0, 10, true));
    assert!(one.set_aside().is_empty() && two.set_aside().is_empty());
}

#[tokio::test]
async fn what_a_dead_host_did_not_send_is_announced_at_its_place() {
    let one = one_that_said("sent").await;
    let bucket = one.send();
    one.says("not sent").await;
    let two = Host::new();
    assert_eq!(two.goes_on(bucket.path()).await.last, 2);
    let whats = two.whats();
    assert_eq!(whats[2], (3, went_on(false)));
    let (4, What::Lost(Lost { count: None, reason })) = &whats[3] else { panic!("{whats:?}") };
    assert!(reason.contains("after event 2"), "{reason}");
    let report = two.report();
    assert_eq!((report.findings.len(), report.gaps.len()), (0, 1));
    // When that host is back, what only it has is kept there, and can be verified.
    one.recorder.close().await;
    let back = open(one.dir.path());
    back.set_aside(&sandbox()).unwrap();
    assert!(pieces(back.dir(), &sandbox()).unwrap().is_empty());
    let places = aside(back.dir()).unwrap();
    assert_eq!(places.len(), 1);
    let there = verify(&places[0], &sandbox(), &back.public_key(), None).unwrap();
    assert_eq!((there.findings.len(), there.last), (0, 4));
    back.close().await;
}

#[tokio::test]
async fn a_journal_of_which_nothing_comes_says_that_there_was_one() {
    let two = Host::new();
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(two.goes_on(nothing.path()).await, Adopted::default());
    let whats = two.whats();
    assert!(matches!(&whats[..], [(1, _), (2, What::Lost(Lost { count: None, .. }))]), "{whats:?}");
    assert_eq!(two.report().gaps.len(), 1);
}

#[tokio::test]
async fn what_was_changed_on_the_way_is_refused_and_what_is_before_it_is_believed() {
    let mut one = one_that_said("first").await;
    one.recorder.end(&sandbox());
    one.restart().await;
    one.recorder.begin(&sandbox(), None, Mode::On);
    one.says("second").await;
    let bucket = one.send();
    let there = bucket.path().join(sandbox().as_str());
    let found = pieces(bucket.path(), &sandbox()).unwrap();
    let [first, second] = &found[..] else { panic!("two segments: {found:?}") };
    let whole = second.content().unwrap();
    assert!(first.is_closed() && !second.is_closed() && !whole.is_empty());
    let mut changed = whole.clone();
    let at = whole.windows(6).position(|bytes| bytes == b"second").unwrap();
    changed[at] ^= 1;
    for wrong in [changed, whole[..whole.len() - 1].to_vec(), b"no journal".to_vec()] {
        fs::write(there.join(second.name()), &wrong).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let place = copy.path().join(sandbox().as_str());
        fs::create_dir(&place).unwrap();
        for piece in [first, second] {
            fs::copy(there.join(piece.name()), place.join(piece.name())).unwrap();
        }
        let two = Host::new();
        let adopted = two.goes_on(copy.path()).await;
        assert_eq!((adopted.last, adopted.refused), (3, vec![second.name().to_owned()]));
        assert!(!two.whats().iter().any(|(_, found)| *found == what("second")));
        let report = two.report();
        assert_eq!((report.findings.len(), report.gaps.len(), two.set_aside().len()), (0, 1, 1));
        assert!(report.gaps[0].1.contains("not as it was written"), "{report:?}");
    }
    // Nothing is left when the first is wrong, even if the second is as it was.
    fs::write(there.join(second.name()), &whole).unwrap();
    fs::write(there.join(first.name()), b"no journal").unwrap();
    let two = Host::new();
    let adopted = two.goes_on(bucket.path()).await;
    assert_eq!((adopted.last, adopted.refused.len()), (0, 2));
    assert_eq!(two.report().findings, []);
}

#[tokio::test]
async fn a_journal_whose_oldest_part_is_gone_says_so_and_verifies() {
    let mut one = one_that_said("first").await;
    one.recorder.end(&sandbox());
    one.restart().await;
    one.recorder.begin(&sandbox(), None, Mode::On);
    one.says("second").await;
    let bucket = one.send();
    let oldest = pieces(bucket.path(), &sandbox()).unwrap().remove(0);
    fs::remove_file(bucket.path().join(sandbox().as_str()).join(oldest.name())).unwrap();
    let two = Host::new();
    two.goes_on(bucket.path()).await;
    let report = two.report();
    assert_eq!((report.findings.len(), report.first), (0, 4));
    let dropped = What::Recorder(RecorderEvent::Dropped { before: 4 });
    assert!(two.whats().iter().any(|(_, found)| *found == dropped));
}

#[tokio::test]
async fn a_journal_that_lies_here_stays_only_if_it_has_what_comes() {
    // It has all of it, and more.
    let mut one = one_that_said("sent").await;
    let bucket = one.send();
    one.says("not sent").await;
    one.restart().await;
    one.goes_on(bucket.path()).await;
    assert!(one.whats().iter().any(|(_, found)| *found == what("not sent")));
    assert!(one.set_aside().is_empty());
    // Another host went on meanwhile from what was sent.
    let mut one = one_that_said("sent").await;
    let two = Host::new();
    two.goes_on(one.send().path()).await;
    one.says("not sent").await;
    two.says("elsewhere").await;
    let bucket = two.send();
    one.restart().await;
    one.goes_on(bucket.path()).await;
    let whats = one.whats();
    let has = |text| whats.iter().any(|(_, found)| *found == what(text));
    assert!(has("sent") && has("elsewhere") && !has("not sent"), "{whats:?}");
    assert_eq!((one.report().findings.len(), one.set_aside().len()), (0, 1));
}

/// What was refused still lies where all hosts look, under the names that come next.
#[tokio::test]
async fn what_came_is_sent_nowhere_before_that_place_is_in_order() {
    let of = |host: &Host| unsettled(host.recorder.dir(), &sandbox()).unwrap();
    let mut one = one_that_said("sent").await;
    assert_eq!(of(&one), None, "it was begun here");
    let two = Host::new();
    two.goes_on(one.send().path()).await;
    two.says("on the second").await;
    assert_eq!(of(&two), Some(2));
    settled(two.recorder.dir(), &sandbox()).unwrap();
    settled(two.recorder.dir(), &sandbox()).unwrap();
    assert_eq!(of(&two), None);
    let three = Host::new();
    three.goes_on(tempfile::tempdir().unwrap().path()).await;
    assert_eq!(of(&three), Some(0), "nothing came, and something may be there");
    // One that stays as it lies here, too, if something else is there.
    let bucket = one.send();
    fs::write(bucket.path().join(sandbox().as_str()).join(format!("{:020}.log", 9)), "another").unwrap();
    one.restart().await;
    assert_eq!(one.goes_on(bucket.path()).await.refused.len(), 1);
    assert_eq!(of(&one), Some(2));
}

#[tokio::test]
async fn nothing_is_taken_from_under_a_recorder_that_writes() {
    let one = one_that_said("here").await;
    let nothing = tempfile::tempdir().unwrap();
    let busy = io::ErrorKind::ResourceBusy;
    assert_eq!(one.recorder.adopt(&sandbox(), nothing.path()).unwrap_err().kind(), busy);
    assert_eq!(one.recorder.set_aside(&sandbox()).unwrap_err().kind(), busy);
    assert_eq!(one.recorder.forget(&sandbox()).unwrap_err().kind(), busy);
    assert_eq!(one.whats().len(), 2);
}
