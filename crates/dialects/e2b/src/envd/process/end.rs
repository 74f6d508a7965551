//! How a process ended, in the words of Go's `os.ProcessState`: the clients show these texts, and look for some of
//! them.

use atoll_core::exec::{Exit, ExitReason};

use crate::connect::{Ending, Fault, Kind};
use crate::wire::process::EndEvent;

/// The last event, or how the stream ends without one.
pub(super) fn end(exit: &Exit) -> Result<EndEvent, Ending> {
    match exit.reason {
        ExitReason::TimedOut | ExitReason::IdleTimedOut => Err(Fault::deadline().into()),
        // The sandbox no longer answers: the client looks whether it is gone.
        ExitReason::SandboxDied | ExitReason::SandboxPaused | ExitReason::RolledBack => Err(Ending::Cut),
        ExitReason::BudgetExhausted => {
            Err(Fault::new(Kind::ResourceExhausted, "the sandbox's budget is used up").into())
        }
        ExitReason::Exited
        | ExitReason::Signaled
        | ExitReason::OutOfMemory
        | ExitReason::Killed
        | ExitReason::Disconnected
        | ExitReason::NotStarted => Ok(event(exit)),
    }
}

fn event(exit: &Exit) -> EndEvent {
    if let Some(signal) = exit.signal {
        let status = format!("signal: {}", signal_text(signal));
        return EndEvent { exit_code: -1, exited: false, error: Some(status.clone()), status };
    }
    let code = exit.code.unwrap_or_default();
    let status = format!("exit status {code}");
    EndEvent { exit_code: code, exited: true, error: (code != 0).then(|| status.clone()), status }
}

/// Go's texts for Linux's signals.
const fn signal_text(signal: i32) -> &'static str {
    match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        31 => "bad system call",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(reason: ExitReason, code: Option<i32>, signal: Option<i32>) -> EndEvent {
        end(&Exit { reason, code, signal, error: None }).unwrap()
    }

    #[test]
    fn go_texts() {
        let fine = of(ExitReason::Exited, Some(0), None);
        assert_eq!(
            (fine.exit_code, fine.exited, fine.status.as_str(), fine.error),
            (0, true, "exit status 0", None)
        );
        let failed = of(ExitReason::Exited, Some(3), None);
        assert_eq!((failed.exit_code, failed.error.as_deref()), (3, Some("exit status 3")));
        let killed = of(ExitReason::Signaled, Some(137), Some(9));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
        assert_eq!(killed.error.as_deref(), Some("signal: killed"));
    }

    #[test]
    fn a_timeout_is_the_protocol_s() {
        let exit = Exit { reason: ExitReason::TimedOut, code: Some(137), signal: Some(9), error: None };
        assert!(matches!(end(&exit), Err(Ending::Fault(fault)) if fault.kind == Kind::DeadlineExceeded));
        assert!(matches!(end(&Exit::sandbox_died()), Err(Ending::Cut)));
    }
}
