//! Files and logs of the session's sandboxes as resources: `atoll://SANDBOX/files/PATH`, `atoll://SANDBOX/execs/EXEC/log`.

use atoll_client::{AttachEvent, ListExecs, ResumePolicy};
use atoll_core::Code;
use percent_encoding::percent_decode_str;
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};

use crate::error::{Result, ToolError};
use crate::excerpt::Excerpt;
use crate::files::{READ_MAX_BYTES, encode, piece};
use crate::session::Session;
use crate::types::Encoding;

/// Logs that are listed of each sandbox, the newest.
const LOGS_COUNT: u32 = 20;
/// Bytes that are shown of the beginning and of the end of a log.
const LOG_BYTES: usize = 128 << 10;
/// Bytes of a command that are shown as the title of its log.
const TITLE_CHARS: usize = 80;

/// What an address means.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    File { sandbox: String, path: String },
    Log { sandbox: String, exec: String },
}

fn parse(uri: &str) -> Option<Address> {
    let (sandbox, rest) = uri.strip_prefix("atoll://")?.split_once('/')?;
    let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned);
    let sandbox = decode(sandbox).filter(|sandbox| !sandbox.is_empty())?;
    if let Some(path) = rest.strip_prefix("files/") {
        let path = decode(path)?;
        return Some(Address::File { sandbox, path: format!("/{}", path.trim_start_matches('/')) });
    }
    let exec = decode(rest.strip_prefix("execs/")?.strip_suffix("/log")?)?;
    (!exec.is_empty() && !exec.contains('/')).then_some(Address::Log { sandbox, exec })
}

/// What a client can fill in.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("atoll://{sandbox}/files/{+path}", "file")
            .with_description("A file in a sandbox, by its absolute path without the first slash"),
        ResourceTemplate::new("atoll://{sandbox}/execs/{exec}/log", "log")
            .with_description("The output of a command")
            .with_mime_type("text/plain"),
    ]
}

/// The logs of the newest commands of each sandbox.
pub(crate) async fn list(session: &Session) -> Result<Vec<Resource>> {
    let mut resources = Vec::new();
    for (sandbox, _) in session.list().await? {
        let page = ListExecs { limit: Some(LOGS_COUNT), ..ListExecs::default() };
        let execs = session.client.list_execs(&sandbox.id, &page).await?;
        for exec in execs.items.into_iter().take(LOGS_COUNT as usize) {
            let title: String =
                exec.argv.last().map(String::as_str).unwrap_or_default().chars().take(TITLE_CHARS).collect();
            resources.push(
                Resource::new(
                    format!("atoll://{}/execs/{}/log", sandbox.id, exec.id),
                    format!("log of {}", exec.id),
                )
                .with_title(title)
                .with_mime_type("text/plain")
                .with_size(exec.output_bytes),
            );
        }
    }
    Ok(resources)
}

/// The content of a resource.
pub(crate) async fn read(session: &Session, uri: &str) -> Result<ResourceContents> {
    match parse(uri) {
        Some(Address::File { sandbox, path }) => file(session, uri, &sandbox, &path).await,
        Some(Address::Log { sandbox, exec }) => log(session, uri, &sandbox, &exec).await,
        None => Err(ToolError::new(
            Code::FileNotFound,
            format!("'{}' is no address of a resource", atoll_core::error::shorten(uri)),
            "write atoll://SANDBOX/files/PATH or atoll://SANDBOX/execs/EXEC/log",
        )),
    }
}

async fn file(session: &Session, uri: &str, sandbox: &str, path: &str) -> Result<ResourceContents> {
    let sandbox = session.sandbox(Some(sandbox)).await?;
    let (content, more) = piece(&session.client, &sandbox, path, 0, READ_MAX_BYTES as usize).await?;
    if more {
        return Err(ToolError::new(
            Code::TooLarge,
            format!("the file has more than {READ_MAX_BYTES} bytes"),
            "the tool read_file reads it piece by piece",
        ));
    }
    Ok(match encode(content, false) {
        (text, Encoding::Utf8, _) => ResourceContents::text(text, uri),
        (blob, Encoding::Base64, _) => {
            ResourceContents::blob(blob, uri).with_mime_type("application/octet-stream")
        }
    })
}

async fn log(session: &Session, uri: &str, sandbox: &str, exec: &str) -> Result<ResourceContents> {
    let sandbox = session.sandbox(Some(sandbox)).await?;
    let mut excerpt = Excerpt::new(LOG_BYTES, LOG_BYTES);
    let mut follower = session.client.follow_output(&sandbox, exec, 0, false, ResumePolicy::default());
    while let Some(event) = follower.next().await? {
        match event {
            // As on a terminal: both streams in the order in which they came.
            AttachEvent::Output { data, .. } => excerpt.push(atoll_core::exec::OutputStream::Stdout, &data),
            AttachEvent::Gap { from, to } => excerpt.gap(from, to),
            AttachEvent::Exit { .. } | AttachEvent::Reconnected { .. } | AttachEvent::Refused(_) => {}
        }
    }
    Ok(ResourceContents::text(excerpt.show().stdout, uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let file =
            |sandbox: &str, path: &str| Some(Address::File { sandbox: sandbox.into(), path: path.into() });
        assert_eq!(parse("atoll://sbx/files/etc/host%20s"), file("sbx", "/etc/host s"));
        assert_eq!(parse("atoll://sbx/files//etc/hosts"), file("sbx", "/etc/hosts"));
        assert_eq!(
            parse("atoll://sbx/execs/exe/log"),
            Some(Address::Log { sandbox: "sbx".into(), exec: "exe".into() })
        );
        for bad in [
            "",
            "file:///etc/passwd",
            "atoll://",
            "atoll:///files/x",
            "atoll://sbx",
            "atoll://sbx/execs//log",
            "atoll://sbx/execs/a%2Fb/log",
            "atoll://sbx/other/x",
            "atoll://%ff/files/x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
