//! The engine's behaviour through its public face, on a fake host and a real SQLite file.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod create;
#[cfg(test)]
mod death;
#[cfg(test)]
mod demand;
#[cfg(test)]
mod execs;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod lifetime;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod output;
#[cfg(test)]
mod pause;
#[cfg(test)]
mod pools;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod shutdown;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod support;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod walk;
