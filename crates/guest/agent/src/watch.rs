//! Watching paths with inotify.
//!
//! Directories are watched one by one. A new one is watched and then read, so that entries that were
//! made in it before the watch was there are reported too (they may then be reported twice). The
//! kernel's queue is the buffer: events are taken only as the host takes them, and when the queue
//! overflows the host is told to look again.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use atoll_guest_protocol::body::RecordWriter;
use atoll_guest_protocol::messages::{ChangeKind, Failure, MarkWatches, Reason, Watch, WatchEvent, Watching};
use atoll_guest_protocol::server::failure;
use rustix::fs::FileType;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::agent::Agent;
use crate::failing::{Stop, errno, io_error};
use crate::files::place::{Place, is_directory};
use crate::files::{Directory, checked, lossy, own_path};
use crate::operations::Answer;
use crate::sys;

/// Watches at once.
const WATCHES_MAX: usize = 64;
/// Directories of one recursive watch; changes in further ones are not seen, and the host is told.
const DIRECTORIES_MAX: usize = 16_384;
/// Most events that are read at once, those before a mark. The kernel's own limit for a queue is as large.
const QUEUED_MAX: usize = 16_384;
/// Entries that are told of when a directory appears with everything in it; beyond it, that some were missed.
const EVENTS_MAX: usize = 10_000;
/// How long the second half of a rename may take to appear.
const PAIR_WAIT: Duration = Duration::from_millis(20);

fn mask() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

/// Counts a watch for as long as it lasts.
struct Slot(Rc<Agent>);

impl Slot {
    fn take(agent: &Rc<Agent>) -> Result<Self, Failure> {
        if agent.watches.get() >= WATCHES_MAX {
            return Err(failure(Reason::Other, format!("there are {WATCHES_MAX} watches already")));
        }
        agent.watches.set(agent.watches.get() + 1);
        Ok(Self(Rc::clone(agent)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.watches.set(self.0.watches.get() - 1);
    }
}

/// `watch-mark`.
pub(crate) fn mark(agent: &Rc<Agent>, request: &MarkWatches) -> Answer {
    agent.marks.send_replace(request.mark);
    Answer::done(0)
}

/// `watch`.
pub(crate) async fn watch(
    agent: &Rc<Agent>,
    request: Watch,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let _slot = Slot::take(agent)?;
    checked(&request.path)?;
    let mut marks = agent.marks.subscribe();
    let with_marks = request.marks;
    // Reading a large tree takes a while.
    let (mut tree, inotify) = agent
        .threads
        .run(move || {
            let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
                .map_err(|cause| errno("cannot watch", cause))?;
            let tree = Tree::new(&inotify, &request)?;
            Ok((tree, inotify))
        })
        .await?;
    let inotify = sys::registered(inotify).map_err(|cause| errno("cannot watch", cause))?;
    response.message(&Watching {}).await?;
    loop {
        let mut mark = None;
        let raw = tokio::select! {
            raw = read_events(&inotify) => raw?,
            () = response.cut() => return Err(Stop::Gone),
            Ok(()) = marks.changed(), if with_marks => {
                mark = Some(*marks.borrow_and_update());
                // The kernel queues a change when it happens: all changes before the mark are in the queue already.
                queued_events(&inotify)?
            }
            // A rename's first half that got no second: it went out of sight.
            () = tokio::time::sleep(PAIR_WAIT), if tree.moving.is_some() => Vec::new(),
        };
        let mut events = Vec::new();
        let alone = raw.is_empty();
        for event in raw {
            tree.take(&inotify, event, &mut events);
        }
        // Both halves of a rename are queued together: behind a mark no second half is to come.
        if alone || mark.is_some() {
            tree.give_up_pair(&inotify, &mut events);
        }
        if let Some(mark) = mark {
            events.push(WatchEvent { kind: ChangeKind::Mark.into(), mark, ..WatchEvent::default() });
        }
        let mut previous = None;
        for event in events {
            // Writing makes one event for each call.
            if event.kind() == ChangeKind::Written && previous.as_ref() == Some(&event) {
                continue;
            }
            response.message(&event).await?;
            previous = Some(event);
        }
        if tree.gone {
            return Err(failure(Reason::NotFound, "the watched path is gone").into());
        }
    }
}

struct RawEvent {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<PathBuf>,
}

async fn read_events(inotify: &AsyncFd<OwnedFd>) -> Result<Vec<RawEvent>, Stop> {
    loop {
        let mut ready = inotify.readable().await.or(Err(Stop::Gone))?;
        let events = some_events(inotify)?;
        if events.is_empty() {
            ready.clear_ready();
        } else {
            return Ok(events);
        }
    }
}

/// Everything that is queued.
fn queued_events(inotify: &AsyncFd<OwnedFd>) -> Result<Vec<RawEvent>, Stop> {
    let mut all = some_events(inotify)?;
    let mut more = !all.is_empty();
    while more && all.len() < QUEUED_MAX {
        let events = some_events(inotify)?;
        more = !events.is_empty();
        all.extend(events);
    }
    Ok(all)
}

/// One buffer at a time, so that the queue stays in the kernel. Nothing when nothing is queued.
fn some_events(inotify: &AsyncFd<OwnedFd>) -> Result<Vec<RawEvent>, Stop> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify.get_ref(), &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => events.push(RawEvent {
                watch: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: event
                    .file_name()
                    .map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()))),
            }),
            Err(Errno::AGAIN) => return Ok(events),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(errno("watch", cause).into()),
        }
        if reader.is_buffer_empty() && !events.is_empty() {
            return Ok(events);
        }
    }
}

/// The watched directories, and a rename of which the first half was seen.
struct Tree {
    root: PathBuf,
    root_watch: i32,
    recursive: bool,
    paths: HashMap<i32, PathBuf>,
    moving: Option<(u32, PathBuf, bool)>,
    gone: bool,
}

impl Tree {
    fn new(inotify: &OwnedFd, request: &Watch) -> Result<Self, Failure> {
        let root = PathBuf::from(&request.path);
        let told = |cause: Errno| match cause {
            Errno::NOSPC => failure(Reason::Other, "the sandbox's inotify watches are used up"),
            cause => errno(&request.path, cause),
        };
        let opened = Place::follow(&root).and_then(|place| place.open_path());
        let opened = opened.map_err(|error| io_error(&request.path, &error))?;
        let root_watch = watch_opened(inotify, &opened, &root, mask()).map_err(told)?;
        let mut tree = Self {
            paths: HashMap::from([(root_watch, root.clone())]),
            recursive: request.recursive && is_directory(&root),
            root,
            root_watch,
            moving: None,
            gone: false,
        };
        if tree.recursive {
            let mut unwanted = Vec::new();
            let root = tree.root.clone();
            if !tree.descend(inotify, &root, false, &mut unwanted) {
                return Err(told(Errno::NOSPC));
            }
        }
        Ok(tree)
    }

    /// Watches everything below a directory that is watched already. Says whether it all went well.
    fn descend(
        &mut self,
        inotify: impl AsFd,
        top: &Path,
        report: bool,
        events: &mut Vec<WatchEvent>,
    ) -> bool {
        let mut stack = vec![top.to_path_buf()];
        while let Some(directory) = stack.pop() {
            let Ok(here) = Directory::open(&directory) else { continue };
            for (name, kind) in here.entries().into_iter().flatten().flatten() {
                let path = directory.join(&name);
                if report {
                    if events.len() >= EVENTS_MAX {
                        return false;
                    }
                    events.push(change(ChangeKind::Created, &path));
                    // The process that made it may have written all of it before there was a watch.
                    if here.metadata(&name).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
                        events.push(change(ChangeKind::Written, &path));
                    }
                }
                let is_directory = match kind {
                    FileType::Unknown => here.metadata(&name).is_ok_and(|meta| meta.is_dir()),
                    kind => kind == FileType::Directory,
                };
                if is_directory {
                    if !self.add(&inotify, &path) {
                        return false;
                    }
                    stack.push(path);
                }
            }
        }
        true
    }

    /// Watches one directory. A directory that went meanwhile is no failure.
    fn add(&mut self, inotify: impl AsFd, path: &Path) -> bool {
        if self.paths.len() >= DIRECTORIES_MAX {
            return false;
        }
        let Ok(opened) = Place::of(path).and_then(|place| place.open_path()) else { return true };
        match watch_opened(&inotify, &opened, path, mask() | WatchFlags::ONLYDIR) {
            Ok(watch) => {
                self.paths.insert(watch, path.to_path_buf());
                true
            }
            Err(Errno::NOSPC | Errno::NOMEM) => false,
            Err(_) => true,
        }
    }

    /// Forgets the directories at and below a path.
    fn forget(&mut self, inotify: impl AsFd, path: &Path) {
        self.paths.retain(|watch, place| {
            let below = place.starts_with(path);
            if below {
                // The kernel may have removed it by itself.
                remove_watch(&inotify, *watch).unwrap_or_default();
            }
            !below
        });
    }

    fn give_up_pair(&mut self, inotify: impl AsFd, events: &mut Vec<WatchEvent>) {
        if let Some((_, from, is_directory)) = self.moving.take() {
            if is_directory {
                self.forget(inotify, &from);
            }
            events.push(change(ChangeKind::Removed, &from));
        }
    }

    fn take(&mut self, inotify: impl AsFd, event: RawEvent, events: &mut Vec<WatchEvent>) {
        let flags = event.flags;
        let pairs = flags.contains(ReadFlags::MOVED_TO)
            && self.moving.as_ref().is_some_and(|(cookie, ..)| *cookie == event.cookie);
        if !pairs {
            self.give_up_pair(&inotify, events);
        }
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            events.push(change(ChangeKind::Overflow, &self.root));
            return;
        }
        let Some(directory) = self.paths.get(&event.watch).cloned() else { return };
        if flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            return;
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            // For any other directory, the watch of its parent reports this.
            if event.watch == self.root_watch {
                events.push(change(ChangeKind::Removed, &directory));
                self.gone = true;
            }
            return;
        }
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let path = event.name.map_or_else(|| directory.clone(), |name| directory.join(name));
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.moving = Some((event.cookie, path, is_directory));
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(&inotify, path, is_directory, events);
        } else if flags.contains(ReadFlags::CREATE) {
            self.appeared(&inotify, &path, is_directory, events);
        } else if flags.contains(ReadFlags::MODIFY) {
            events.push(change(ChangeKind::Written, &path));
        } else if flags.contains(ReadFlags::DELETE) {
            events.push(change(ChangeKind::Removed, &path));
        } else if flags.contains(ReadFlags::ATTRIB) {
            events.push(change(ChangeKind::Attributes, &path));
        }
    }

    fn appeared(
        &mut self,
        inotify: impl AsFd,
        path: &Path,
        is_directory: bool,
        events: &mut Vec<WatchEvent>,
    ) {
        events.push(change(ChangeKind::Created, path));
        if is_directory
            && self.recursive
            && !(self.add(&inotify, path) && self.descend(&inotify, path, true, events))
        {
            events.push(change(ChangeKind::Overflow, path));
        }
    }

    fn moved_to(
        &mut self,
        inotify: impl AsFd,
        to: PathBuf,
        is_directory: bool,
        events: &mut Vec<WatchEvent>,
    ) {
        let Some((_, from, _)) = self.moving.take() else {
            return self.appeared(inotify, &to, is_directory, events);
        };
        for place in self.paths.values_mut() {
            if let Ok(rest) = place.strip_prefix(&from) {
                *place = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
            }
        }
        let mut event = change(ChangeKind::Moved, &to);
        event.from = lossy(from.as_os_str());
        events.push(event);
    }
}

/// Watches what was opened. The kernel takes only a path for that, and this one is the agent's own.
fn watch_opened(inotify: impl AsFd, opened: &OwnedFd, path: &Path, flags: WatchFlags) -> Result<i32, Errno> {
    match add_watch(&inotify, own_path(opened), flags) {
        // Without a `/proc` there is no magic link on the path.
        Err(Errno::NOENT) => add_watch(&inotify, path, flags | WatchFlags::DONT_FOLLOW),
        watched => watched,
    }
}

fn change(kind: ChangeKind, path: &Path) -> WatchEvent {
    WatchEvent { kind: kind.into(), path: lossy(path.as_os_str()), ..WatchEvent::default() }
}
