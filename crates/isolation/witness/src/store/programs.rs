//! Maps and programs of one set of pins: those that an earlier server pinned, or new ones, loaded and attached.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::bpf;
use crate::fitted::{Cache, Fitted};
use crate::level::Missing;
use crate::object::{self, CONFIG_BYTES, CONFIG_KEY, Hook, Maps, PROGRAMS, WAKE_ABOVE_AT, WAKE_ABOVE_BYTES};

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
    if let Err(error) = wake_as_now(&maps.config) {
        tracing::warn!(%error, "the reader of sandboxes' records is woken as the last server wanted it");
    }
    Ok((maps, programs))
}

/// Tells programs how much may wait in a ring before the thread `witness` is woken. The server that loaded them may have been
/// of a version with larger rings, and what it told them as much as a whole ring now: nobody would be woken, and a ring that fills up
/// between two looks would lose records.
fn wake_as_now(config: &OwnedFd) -> io::Result<()> {
    let mut told = [0; CONFIG_BYTES as usize];
    bpf::look_up(config, &CONFIG_KEY, &mut told)?;
    let now = WAKE_ABOVE_BYTES.to_ne_bytes();
    if told[WAKE_ABOVE_AT..] != now {
        told[WAKE_ABOVE_AT..].copy_from_slice(&now);
        bpf::update(config, &CONFIG_KEY, &told, false)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    fn told(store: &Store) -> [u8; CONFIG_BYTES as usize] {
        let mut told = [0; CONFIG_BYTES as usize];
        assert!(bpf::look_up(&store.maps.config, &CONFIG_KEY, &mut told).unwrap());
        told
    }

    #[test]
    fn programs_of_a_server_with_larger_rings_wake_the_reader_as_rings_are_now() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("witness");
        let store = Store::open(&place).unwrap();
        let new = told(&store);
        assert_eq!(new[WAKE_ABOVE_AT..], WAKE_ABOVE_BYTES.to_ne_bytes());
        // What else they were told stays; programs that were loaded anew would not have this.
        let mut older = new;
        older[WAKE_ABOVE_AT - 1] ^= 1;
        let kept = older;
        older[WAKE_ABOVE_AT..].copy_from_slice(&(4 * WAKE_ABOVE_BYTES).to_ne_bytes());
        bpf::update(&store.maps.config, &CONFIG_KEY, &older, false).unwrap();
        drop(store);

        let store = Store::open(&place).unwrap();
        let taken_up = told(&store);
        store.close();
        assert_eq!(taken_up, kept);
    }
}
