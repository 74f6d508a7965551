//! The API over real sockets, with the engine on a fake isolation level and SQLite.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test that gets anything else fails")]

#[cfg(test)]
mod attach;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod authorization;
#[cfg(test)]
mod closing;
#[cfg(test)]
mod dialects;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod execs;
#[cfg(test)]
mod files;
#[cfg(test)]
mod hangup;
#[cfg(test)]
mod hangup_common;
#[cfg(test)]
mod inputs;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod once;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod people;
#[cfg(test)]
mod sandboxes;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod support;
#[cfg(test)]
mod transfers;
