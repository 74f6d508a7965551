//! Reads the input of the commands about policies: policies, journals, files with events.

use std::io::{self, BufRead, Read as _};
use std::path::Path;

use atoll_api::TraceEvent;
use atoll_client::Client;
use atoll_policy::{Policies, Trace};

use super::super::trace::{Pages, numbered};
use crate::cli::TraceOf;
use crate::failure::{Failure, Result};

/// Largest file with a policy or assertions, bytes.
const FILE_MAX_BYTES: u64 = 4 << 20;
/// Longest line of a file with events, bytes.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// A small text file.
pub(super) fn small(path: &Path) -> Result<String> {
    let what = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).map_err(|error| Failure::io(what(), error))?;
    let mut text = String::new();
    file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| Failure::io(what(), error))?;
    if text.len() as u64 > FILE_MAX_BYTES {
        return Err(Failure::Usage(format!("{}: larger than {FILE_MAX_BYTES} bytes", path.display())));
    }
    Ok(text)
}

/// A policy.
pub(super) fn policies(path: &Path) -> Result<Policies> {
    Policies::read(&small(path)?).map_err(|why| Failure::Usage(format!("{}: {why}", path.display())))
}

/// What sandboxes did, from their journals.
pub(super) async fn journals(
    client: &Client,
    sandboxes: &[String],
    since: Option<u64>,
    exec: Option<&str>,
) -> Result<Trace> {
    let mut trace = Trace::default();
    for sandbox in sandboxes {
        let of = TraceOf {
            sandbox: Some(sandbox.clone()),
            exec: exec.map(str::to_owned),
            kind: Vec::new(),
            since,
        };
        let mut pages = Pages::new(client, of, false);
        loop {
            let items = pages.next().await?;
            if items.is_empty() {
                break;
            }
            for event in &items {
                trace.add(&event.sandbox, &numbered(event)?);
            }
        }
    }
    trace.finish();
    Ok(trace)
}

/// What sandboxes did, from a file with an event in each line.
pub(super) fn file(path: &Path) -> Result<Trace> {
    if path == Path::new("-") {
        return lines(path, io::stdin().lock());
    }
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
    lines(path, io::BufReader::new(file))
}

fn lines(path: &Path, mut file: impl BufRead) -> Result<Trace> {
    let mut trace = Trace::default();
    for number in 1_u64.. {
        let mut line = Vec::new();
        let read = file.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut line);
        if read.map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))? == 0 {
            break;
        }
        let event: TraceEvent = serde_json::from_slice(&line).map_err(|error| {
            let path = path.display();
            Failure::Usage(format!(
                "{path}: line {number} is no event: {error}; 'atoll trace export' writes them"
            ))
        })?;
        trace.add(&event.sandbox, &numbered(&event)?);
    }
    trace.finish();
    Ok(trace)
}
