//! Maps and programs of one set of pins: those that an earlier server pinned, or new ones, loaded and attached.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::bpf;
use crate::fitted::{Cache, Fitted};
use crate::level::Missing;
use crate::object::{self, Hook, Maps, PROGRAMS};

/// What an earlier server pinned: all of it, or an error.
pub(super) fn take_up(set: &Path) -> io::Result<(Maps, Vec<OwnedFd>)> {
    let maps = Maps::each(|name| bpf::open_pin(&set.join(format!("map_{name}"))))?;
    let mut programs = Vec::new();
    for (name, hook) in PROGRAMS {
        programs.push(bpf::open_pin(&set.join(format!("prog_{name}")))?);
        if let Hook::Tracepoint(_) = hook {
            bpf::open_pin(&set.join(format!("link_{name}")))?;
        }
    }
    Ok((maps, programs))
}

/// Loads, attaches and pins everything; what is half there is removed first, and when it fails.
pub(super) fn make(set: &Path) -> Result<(Maps, Vec<OwnedFd>), Missing> {
    let refused = |error| Missing::refused("pin the programs", error);
    let remove = || match std::fs::remove_dir_all(set) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove().map_err(refused)?;
    std::fs::create_dir(set).map_err(refused)?;
    let made = load(set);
    if made.is_err()
        && let Err(error) = remove()
    {
        tracing::warn!(%error, "cannot remove what was pinned in vain");
    }
    made
}

fn load(set: &Path) -> Result<(Maps, Vec<OwnedFd>), Missing> {
    let place = set.parent().and_then(Path::parent).and_then(Cache::below);
    if let Some(fitted) = place.as_ref().and_then(Cache::read) {
        match load_fitted(set, &fitted) {
            Err(error @ (Missing::Unfit(_) | Missing::Kernel { .. })) => {
                tracing::warn!(%error, "programs that were fitted before do not load: they are fitted anew");
                unpin(set).map_err(|error| Missing::refused("pin the programs", error))?;
            }
            loaded_or_forbidden => return loaded_or_forbidden,
        }
    }
    let fitted = Fitted::to_this_kernel()?;
    let loaded = load_fitted(set, &fitted)?;
    if let Some(place) = place {
        place.keep(&fitted);
    }
    Ok(loaded)
}

/// Removes the pins of a set, and leaves its directory.
fn unpin(set: &Path) -> io::Result<()> {
    std::fs::read_dir(set)?.try_for_each(|entry| std::fs::remove_file(entry?.path()))
}

fn load_fitted(set: &Path, fitted: &Fitted) -> Result<(Maps, Vec<OwnedFd>), Missing> {
    let refused = |error| Missing::refused("pin the programs", error);
    let maps = object::make_maps(&fitted.config())?;
    for (name, map) in maps.iter() {
        bpf::pin(map, &set.join(format!("map_{name}"))).map_err(refused)?;
    }
    let mut programs = Vec::new();
    for (name, hook, program) in object::load(fitted, &maps)? {
        bpf::pin(&program, &set.join(format!("prog_{name}"))).map_err(refused)?;
        if let Hook::Tracepoint(event) = hook {
            let link = bpf::attach_tracepoint(&program)
                .map_err(|error| Missing::refused(&format!("attach to the tracepoint {event}"), error))?;
            bpf::pin(&link, &set.join(format!("link_{name}"))).map_err(refused)?;
        }
        programs.push(program);
    }
    Ok((maps, programs))
}
