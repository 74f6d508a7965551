//! Makes one slot, on a thread that lives for nothing else.
//!
//! `unshare(CLONE_NEWNET)` moves the calling thread, so it must not be a thread that is used afterwards:
//! on a pool's or runtime's thread a failure half way would leave later work in the wrong network.
#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::UnshareFlags;

use crate::netlink::Routes;
use crate::settings::Settings;
use crate::{NetworkError, OWN_ADDRESS, Slot, Step, gate};

pub(crate) fn make() -> Result<Slot, NetworkError> {
    on_a_thread(make_here)
}

/// Runs work that changes the thread it runs on.
fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    let thread = std::thread::Builder::new()
        .name("atoll-slot".to_owned())
        .spawn(work)
        .step("start a thread for a network slot")?;
    thread
        .join()
        .unwrap_or_else(|_panic| Err(io::Error::other("its thread panicked")).step("make a network slot"))
}

fn make_here() -> Result<Slot, NetworkError> {
    // SAFETY: NEWNET alone does not touch the file descriptor table, the one hazard of unshare.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.step("make a network namespace")?;
    let routes = Routes::open().step("talk to the routing table")?;
    routes.raise_loopback().step("bring up the loopback interface")?;
    routes.add_address(OWN_ADDRESS).step("give a slot its address")?;
    routes.own_everything(Some(OWN_ADDRESS)).step("route everything to the gateway")?;
    let settings = Settings::open().step("find the settings of a network namespace")?;
    settings.set("ip_unprivileged_port_start", "0").step("open all ports to unprivileged programs")?;
    // All addresses are the namespace's own: the kernel would answer a ping to any of them as if it were there.
    settings.set("icmp_echo_ignore_all", "1").step("leave pings without an answer")?;
    let netns = own_netns().step("open the network namespace")?;
    let gate = gate::open_here(netns.as_fd(), &settings)?;
    Ok(Slot { netns, gate })
}

/// The namespace of this thread.
pub(crate) fn own_netns() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?)
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
