//! The agent inside a sandbox: its first process, and the only one the host talks to.
//!
//! # How it is started
//!
//! The isolation driver executes `atoll-guest` without arguments and hands over:
//!
//! - **fd 3**: a listening `AF_UNIX` stream socket. The host connects to it; a connection that has
//!   introduced itself replaces the one before, and all state stays.
//! - **fd 4**: the agent's own cgroup2 directory, which it may make children in. Absent (or another kind
//!   of file) when there is none; trees are then found by walking `/proc`, which a process that is out
//!   to hide can escape.
//! - **`ATOLL_SANDBOX_ID`**: the sandbox. A host that asks for another one is refused.
//!
//! It runs as PID 1 of a PID namespace, where the kernel drops every signal without a handler but
//! `SIGKILL` from outside; so it handles `SIGCHLD` and leaves the rest alone. As a plain process (in
//! tests) it is a subreaper, so orphans come to it just the same.
//!
//! As the first process of a virtual machine's kernel it has no such things and makes them: see [`machine`]. In gVisor
//! it makes its own socket (**`ATOLL_SOCKETS`** says where): see [`sentry`].
//!
//! # Shape
//!
//! One thread runs everything that waits; all state lives there, without locks. Work that blocks on a
//! disk gets a thread of its own for as long as it takes ([`blocking`]): a resident pool would cost
//! memory in every idle sandbox, and starting a thread must be allowed to fail where a fork bomb has
//! used up the processes. Nothing a process inside does may end the agent, because the sandbox ends with
//! it: no `unwrap`, no unbounded buffer, no waiting that a process inside could make endless.
//!
//! The agent acts with root's rights in the sandbox for files. No process gains rights by that: the host
//! asks on behalf of the sandbox's owner, and root in the sandbox has no rights outside.

pub mod agent;
mod blocking;
mod exec;
mod failing;
mod files;
mod machine;
mod net;
mod operations;
mod sentry;
mod sftp;
mod sys;
mod system;
mod trust;
mod users;
mod watch;
