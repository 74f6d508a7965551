//! Cuts events to their limits: a guest or a caller may send a text of any length.

use crate::event::{Destination, Event, What};
use crate::limits::{ARGV_MAX_CHARS, LIST_MAX_COUNT, NAME_MAX_CHARS, TEXT_MAX_CHARS};
use crate::redact::redact;

/// Cuts a text; what is missing is marked.
fn text(text: &mut String, max_chars: usize) {
    if text.len() <= max_chars {
        return;
    }
    if let Some((at, _)) = text.char_indices().nth(max_chars) {
        text.truncate(at);
        text.push('…');
    }
}

fn short(value: &mut String) {
    text(value, TEXT_MAX_CHARS);
}

/// Cuts a list of names.
fn names(list: &mut Vec<String>) {
    list.truncate(LIST_MAX_COUNT);
    list.iter_mut().for_each(|name| text(name, NAME_MAX_CHARS));
}

fn maybe(value: &mut Option<String>) {
    if let Some(value) = value {
        short(value);
    }
}

fn destination(to: Option<&mut Destination>) {
    let Some(to) = to else { return };
    names(&mut to.names);
    maybe(&mut to.closed);
    maybe(&mut to.method);
    if let Some(path) = &mut to.path {
        no_query(path);
    }
}

/// A path or an address without its query and fragment.
fn no_query(value: &mut String) {
    if let Some(at) = value.find(['?', '#']) {
        value.truncate(at);
    }
    short(value);
}

/// Cuts arguments, and takes out what looks like a credential. Says whether something is missing.
fn argv(argv: &mut Vec<String>) -> bool {
    let mut cut = argv.len() > LIST_MAX_COUNT;
    argv.truncate(LIST_MAX_COUNT);
    let mut room = ARGV_MAX_CHARS;
    let mut after_flag = false;
    for argument in argv.iter_mut() {
        let before = argument.len();
        text(argument, room.max(1));
        cut |= argument.len() < before;
        (*argument, after_flag) = redact(argument, after_flag);
        room = room.saturating_sub(argument.chars().count());
    }
    cut
}

/// Cuts everything in an event that has no limit of its own.
pub(crate) fn clip(event: &mut Event) {
    match &mut event.what {
        What::ProcessStarted(started) => {
            started.cut |= argv(&mut started.argv);
            short(&mut started.cwd);
            short(&mut started.path);
            if let Some(file) = &mut started.file {
                maybe(&mut file.digest);
                maybe(&mut file.layer);
            }
        }
        What::ExecStarted(started) => {
            started.cut |= argv(&mut started.argv);
            short(&mut started.cwd);
            short(&mut started.user);
            names(&mut started.env);
            maybe(&mut started.by);
            maybe(&mut started.traceparent);
        }
        What::File(file) => {
            short(&mut file.path);
            maybe(&mut file.to);
            maybe(&mut file.digest);
        }
        What::Dns(dns) => {
            short(&mut dns.name);
            short(&mut dns.record);
            short(&mut dns.answer);
            dns.addresses.truncate(LIST_MAX_COUNT);
        }
        What::Http(http) => {
            short(&mut http.method);
            short(&mut http.host);
            no_query(&mut http.path);
            short(&mut http.rule);
            names(&mut http.secrets);
            destination(http.to.as_deref_mut());
        }
        What::Connection(connection) => {
            maybe(&mut connection.host);
            short(&mut connection.protocol);
        }
        What::Policy(decision) => {
            no_query(&mut decision.subject);
            short(&mut decision.rule);
            short(&mut decision.stage);
            maybe(&mut decision.ask);
            destination(decision.to.as_deref_mut());
        }
        What::Call(call) => {
            short(&mut call.protocol);
            short(&mut call.method);
            no_query(&mut call.path);
            maybe(&mut call.key);
            maybe(&mut call.subject);
            maybe(&mut call.email);
            maybe(&mut call.holder);
            short(&mut call.request_id);
            maybe(&mut call.error);
            maybe(&mut call.traceparent);
        }
        What::TerminalInput { by, .. } => maybe(by),
        What::Created(created) => {
            maybe(&mut created.name);
            maybe(&mut created.by);
            short(&mut created.isolation);
            short(&mut created.source);
        }
        What::State { state, mode, reason } => {
            short(state);
            maybe(mode);
            maybe(reason);
        }
        What::Snapshot { snapshot, purpose } => {
            short(snapshot);
            short(purpose);
        }
        What::Forked { child: text } | What::RolledBack { snapshot: text } => short(text),
        What::Limits { changed, .. } => names(changed),
        What::BudgetExhausted { reason } => short(reason),
        What::ExecEnded(ended) => short(&mut ended.reason),
        What::Lost(lost) => short(&mut lost.reason),
        What::ProcessForked { .. }
        | What::ProcessExited(_)
        | What::Connect(_)
        | What::Accept(_)
        | What::Listen(_)
        | What::OutOfMemory
        | What::Recorder(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Witness;
    use crate::event::{ExecStarted, Http};
    use crate::limits::RECORD_MAX_BYTES;

    fn event(what: What) -> Event {
        Event { at_us: u64::MAX, witness: Witness::Server, exec: None, process: None, what }
    }

    #[test]
    fn no_event_is_larger_than_a_record() {
        // The worst that JSON makes of a character: six bytes each.
        let long = "\u{1}".repeat(100_000);
        let mut event = event(What::ExecStarted(ExecStarted {
            argv: vec![long.clone(); 1000],
            cwd: long.clone(),
            user: long.clone(),
            env: vec![long.clone(); 1000],
            by: Some(long),
            ..ExecStarted::default()
        }));
        clip(&mut event);
        assert!(matches!(&event.what, What::ExecStarted(started) if started.cut));
        assert!(serde_json::to_vec(&event).unwrap().len() < RECORD_MAX_BYTES);
    }

    #[test]
    fn queries_are_not_kept() {
        let mut event = event(What::Http(Http { path: "/a?token=x".into(), ..Http::default() }));
        clip(&mut event);
        assert!(matches!(&event.what, What::Http(http) if http.path == "/a"));
    }
}
