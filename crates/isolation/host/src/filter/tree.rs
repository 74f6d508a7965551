//! What becomes of a call by its number alone, found by halving.
//!
//! Each time a filter is installed the kernel tries it with every number there is, to learn which calls it need not be
//! asked about again. A filter that asks about one number after the other made that take most of a millisecond, in each
//! sandbox; this one comes to an answer after about seven questions.

use libc::sock_filter;

use super::instruction::{
    ARCHITECTURE, JUMP, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD, NUMBER, RETURN, X86_64, errno, step,
};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Let through.
    Allowed,
    /// Refused with `EPERM`.
    Refused,
    /// Refused as if the kernel did not have it (`ENOSYS`): programs then use an older call.
    Missing,
    /// Decided by what follows.
    Asked,
}

/// A program that lets through, refuses, or goes on to what is put behind it. `fates` are those of the numbers from 0 on;
/// numbers beyond, and all numbers of another architecture, are `Asked`.
#[must_use]
pub fn decide(fates: &[Fate]) -> Vec<sock_filter> {
    let mut runs: Vec<(u32, Fate)> = Vec::new();
    for (number, fate) in (0..).zip(fates.iter().copied().chain([Fate::Asked])) {
        if runs.last().is_none_or(|(_, last)| *last != fate) {
            runs.push((number, fate));
        }
    }
    let mut tree = vec![step(LOAD, NUMBER, 0, 0)];
    halve(&runs, &mut tree);
    // Now that it is known where the program ends.
    let length = offset(tree.len());
    for (at, jump) in (0..).zip(&mut tree).filter(|(_, instruction)| instruction.code == JUMP) {
        jump.k = length - at - 1;
    }
    let mut program =
        vec![step(LOAD, ARCHITECTURE, 0, 0), step(JUMP_IF_EQUAL, X86_64, 1, 0), step(JUMP, length, 0, 0)];
    program.append(&mut tree);
    program
}

/// The answer for numbers that lie in one of `runs`, each given by its first number.
fn halve(runs: &[(u32, Fate)], program: &mut Vec<sock_filter>) {
    match runs {
        [] => {}
        [(_, Fate::Allowed)] => program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)),
        [(_, Fate::Refused)] => program.push(step(RETURN, errno(libc::EPERM), 0, 0)),
        [(_, Fate::Missing)] => program.push(step(RETURN, errno(libc::ENOSYS), 0, 0)),
        [(_, Fate::Asked)] => program.push(step(JUMP, 0, 0, 0)),
        runs => {
            let (below, from) = runs.split_at(runs.len() / 2);
            let at = program.len();
            program.push(step(JUMP_IF_AT_LEAST, from[0].0, 0, 0));
            halve(below, program);
            // The lower half has fewer than 200 instructions: there are fewer than 470 numbers, in fewer runs.
            program[at].jt = u8::try_from(program.len() - at - 1).unwrap_or(u8::MAX);
            halve(from, program);
        }
    }
}

fn offset(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
