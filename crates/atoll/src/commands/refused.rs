//! After a command that failed: what the network refused its sandbox meanwhile. Programs inside say only "could not
//! resolve host", or that a connection was reset.

use std::time::Duration;

use atoll_core::exec::{Exit, ExitReason};
use atoll_core::network::{DenialView, narrowest};

use crate::output::Printer;
use crate::session::Target;

/// Whoever waits for the exit code of a command waits no longer than this for a hint.
const PATIENCE: Duration = Duration::from_secs(2);
/// Refused destinations that are named at most: a hint is one line.
const SHOWN_MAX_COUNT: usize = 3;

/// Says what the gateway refused since a command was made, and what would allow it, if the command failed. The server's
/// times are compared with each other, so this machine's clock does not matter. `stays` is whether the sandbox can still
/// be changed, or goes with its command.
pub(super) async fn tell(printer: Printer, target: Target<'_>, exit: &Exit, since_ms: u64, stays: bool) {
    if printer.is_json() || !may_be_for_the_network(exit) {
        return;
    }
    let asked = tokio::time::timeout(PATIENCE, target.client.sandbox_network(target.sandbox)).await;
    // The sandbox may be gone, and it is only a hint.
    let Ok(Ok(network)) = asked else { return };
    if let Some(text) = hint(&network.denials, since_ms, target.sandbox, stays) {
        printer.hint(&text);
    }
}

/// Whether a command failed in a way that what it could not reach may explain.
fn may_be_for_the_network(exit: &Exit) -> bool {
    match exit.reason {
        ExitReason::Exited => exit.code != Some(0),
        ExitReason::Signaled | ExitReason::TimedOut | ExitReason::IdleTimedOut => true,
        ExitReason::OutOfMemory
        | ExitReason::Killed
        | ExitReason::Disconnected
        | ExitReason::SandboxPaused
        | ExitReason::BudgetExhausted
        | ExitReason::RolledBack
        | ExitReason::NotStarted
        | ExitReason::SandboxDied => false,
    }
}

fn hint(denials: &[DenialView], since_ms: u64, sandbox: &str, stays: bool) -> Option<String> {
    let meanwhile = |denial: &&DenialView| !denial.observed && denial.last_at_ms >= since_ms;
    let refused: Vec<_> = denials.iter().filter(meanwhile).collect();
    let newest = refused.first()?;
    let (mut whats, mut options): (Vec<&str>, Vec<(&str, &str)>) = (Vec::new(), Vec::new());
    for denial in &refused {
        if whats.contains(&denial.what.as_str()) {
            continue;
        }
        whats.push(&denial.what);
        let option = denial.ask.as_deref().and_then(narrowest).filter(|option| !options.contains(option));
        options.extend(option.filter(|_| whats.len() <= SHOWN_MAX_COUNT));
    }
    let shown = whats.iter().take(SHOWN_MAX_COUNT).copied().collect::<Vec<_>>().join(", ");
    let what = match whats.len() {
        1 => format!("{shown}: {}", newest.why),
        count if count > SHOWN_MAX_COUNT => format!("{shown} and {} more", count - SHOWN_MAX_COUNT),
        _ => shown,
    };
    let mut helps = Vec::new();
    if stays {
        let targets: Vec<_> = options.iter().map(|(_, target)| *target).collect();
        if !targets.is_empty() {
            helps.push(format!("'atoll net allow {sandbox} {}' would allow it", targets.join(" ")));
        }
        helps.push(format!("'atoll net denied {sandbox}' says more"));
    } else if !options.is_empty() {
        let options: Vec<_> = options.iter().map(|(option, target)| format!("{option} {target}")).collect();
        helps.push(format!("'atoll run {}' would allow it", options.join(" ")));
    }
    let helps = if helps.is_empty() { String::new() } else { format!("; {}", helps.join(", ")) };
    Some(format!("the network stopped {what}{helps}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::network::Stage;

    fn denial(what: &str, ask: Option<&str>, last_at_ms: u64) -> DenialView {
        DenialView {
            stage: Stage::Dns,
            what: what.to_owned(),
            why: "no rule allows it (internet: rules)".to_owned(),
            ask: ask.map(str::to_owned),
            last_at_ms,
            count: 1,
            observed: false,
        }
    }

    #[test]
    fn a_sandbox_that_stays_can_be_allowed_what_it_was_refused() {
        let one = [denial("a.test", Some("--allow a.test"), 20), denial("old.test", None, 9)];
        assert_eq!(
            hint(&one, 10, "dev", true).unwrap(),
            "the network stopped a.test: no rule allows it (internet: rules); 'atoll net allow dev a.test' would allow it, \
             'atoll net denied dev' says more"
        );
        let address = denial("10.1.2.3:80", Some("--internet on, or --allow-cidr 10.1.2.3:80"), 12);
        let several = [
            denial("a.test", Some("--allow a.test"), 20),
            denial("a.test", Some("--allow a.test"), 15),
            address,
            denial("b.test", None, 11),
            denial("c.test", Some("--allow c.test"), 10),
        ];
        assert_eq!(
            hint(&several, 10, "dev", true).unwrap(),
            "the network stopped a.test, 10.1.2.3:80, b.test and 1 more; 'atoll net allow dev a.test 10.1.2.3:80' would \
             allow it, 'atoll net denied dev' says more"
        );
    }

    #[test]
    fn a_sandbox_that_goes_is_made_again_with_options() {
        let asks = [
            denial("a.test", Some("--allow a.test"), 20),
            denial("10.1.2.3:80", Some("--internet on, or --allow-cidr 10.1.2.3:80"), 12),
        ];
        assert_eq!(
            hint(&asks, 10, "sb_1", false).unwrap(),
            "the network stopped a.test, 10.1.2.3:80; 'atoll run --allow a.test --allow-cidr 10.1.2.3:80' would allow it"
        );
        let by_rule = [denial("a.test", None, 20)];
        assert_eq!(
            hint(&by_rule, 10, "sb_1", false).unwrap(),
            "the network stopped a.test: no rule allows it (internet: rules)"
        );
    }

    #[test]
    fn what_passed_or_was_refused_before_is_no_reason() {
        let passed = DenialView { observed: true, ..denial("a.test", None, 20) };
        assert_eq!(hint(&[passed, denial("b.test", None, 9)], 10, "dev", true), None);
        let limit = denial("connections", Some("--connections"), 20);
        let said = hint(&[limit], 10, "dev", true).unwrap();
        assert!(!said.contains("net allow"), "{said}");
    }
}
