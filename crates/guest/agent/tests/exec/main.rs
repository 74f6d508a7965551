//! Commands in the real agent.

#[path = "../common/mod.rs"]
mod common;

#[cfg(test)]
mod end;
#[cfg(test)]
mod output;
#[cfg(test)]
mod start;

/// An exit code, as an exec has one.
fn code(code: i32) -> Option<i32> {
    Some(code)
}
