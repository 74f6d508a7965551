//! `ADD` of an address: the file comes over the build's own sandbox, so that its policy decides.

use std::io::{self, Write as _};

use atoll_build::plan::Target;
use atoll_core::id::SandboxId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_core::{Code, Error, Result};
use atoll_egress::{FetchError, FetchRoots, ProxyStream, fetch};
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};
use tokio::io::AsyncWriteExt as _;

use super::copy::{ROOT, feed, header, place};
use super::run::Run;
use crate::errors::guest_error;

/// Permissions of a file that says none.
const MODE: u32 = 0o600;
/// What it is called while it comes.
const COMING: &str = "fetched";

impl Run<'_> {
    /// Fetches a file and writes it into a step's sandbox.
    pub(super) async fn fetch(
        &self,
        sandbox: &SandboxId,
        url: &str,
        checksum: Option<&str>,
        to: &Target,
    ) -> Result<()> {
        let lease = self.engine.guest(sandbox).await?;
        let mut place = place(&lease, to, true).await?;
        if place.rename.is_none() {
            place.rename = Some(name(url)?);
        }
        let file = self.context_dir().join(COMING);
        let (size, digest) = self.download(sandbox, url, &file).await?;
        if let Some(wanted) = checksum.filter(|wanted| *wanted != digest) {
            let message = format!("the file that was fetched has another checksum: sha256:{digest}");
            return Err(Error::new(Code::DigestMismatch, message).hint(format!("sha256:{wanted} was wanted")));
        }
        let owner = to.chown.clone().unwrap_or_else(|| ROOT.to_owned());
        let done = feed(&lease, owner, {
            let file = file.clone();
            move |out| {
                let mut tar = Builder::new(out);
                let mut header = header(EntryType::Regular, place.chmod.unwrap_or(MODE), size);
                tar.append_data(&mut header, place.of(std::path::Path::new("")), std::fs::File::open(file)?)?;
                tar.into_inner()?.flush()
            }
        });
        done.await?;
        // It goes with the build's directory otherwise.
        drop(tokio::fs::remove_file(file).await);
        Ok(())
    }

    /// Brings a file to this host; its size, and its SHA-256 in hexadecimal digits.
    async fn download(&self, sandbox: &SandboxId, url: &str, to: &std::path::Path) -> Result<(u64, String)> {
        let engine = self.engine;
        let connect = move || -> BoxFuture<'_, io::Result<Box<dyn ProxyStream>>> {
            Box::pin(async move {
                let lease = engine.guest(sandbox).await.map_err(io::Error::other)?;
                let stream =
                    lease.dial_proxy().await.map_err(|error| io::Error::other(guest_error(error)))?;
                Ok(Box::new(stream) as Box<dyn ProxyStream>)
            })
        };
        // Where a rule opens TLS, the server is the gateway.
        let trust = &self.engine.inner.config.trust;
        let roots = FetchRoots { gateway: &trust.ca_pem, upstream: &trust.upstream_pem };
        let mut coming = fetch(&connect, url, roots).await.map_err(|error| failed(&error))?;
        if let Some(directory) = to.parent() {
            tokio::fs::create_dir_all(directory).await.map_err(|error| host(&error))?;
        }
        let mut file = tokio::fs::File::create(to).await.map_err(|error| host(&error))?;
        let (mut size, mut hasher) = (0_u64, Sha256::new());
        while let Some(piece) = coming.next().await.map_err(|error| failed(&error))? {
            size += piece.len() as u64;
            if size > BUILD_CONTEXT_MAX_BYTES {
                return Err(Error::new(Code::TooLarge, "the file is larger than 4 GiB"));
            }
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(|error| host(&error))?;
        }
        file.flush().await.map_err(|error| host(&error))?;
        let digits =
            |byte: &u8| [byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0'));
        Ok((size, hasher.finalize().iter().flat_map(digits).collect()))
    }
}

/// The name of what is at an address, for a destination that is a directory.
fn name(url: &str) -> Result<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.splitn(4, '/').nth(3).and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('%');
    let wrong = || {
        Error::new(Code::BuildFileInvalid, "the address does not say what the file is called")
            .hint("write the destination with the file's name, without '/' at its end")
    };
    if plain { Ok(name.to_owned()) } else { Err(wrong()) }
}

fn failed(error: &FetchError) -> Error {
    let message = format!("ADD: {error}");
    match error {
        FetchError::Address(_) => Error::new(Code::BuildFileInvalid, message),
        FetchError::Refused(_) => Error::new(Code::BuildStepFailed, message)
            .hint("the build's policy decides what it may reach: --allow HOST, as for RUN"),
        _ => Error::new(Code::BuildStepFailed, message),
    }
}

fn host(error: &io::Error) -> Error {
    tracing::error!(%error, "a fetched file cannot be kept");
    Error::new(Code::HostDiskFull, "the host cannot keep the file").hint("free some, then build again")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names() {
        let name = |url: &str| super::name(url).ok();
        assert_eq!(name("https://a.example/b/c.tgz?d#e").as_deref(), Some("c.tgz"));
        for bad in [
            "https://a.example",
            "https://a.example/",
            "https://a.example/b/",
            "https://a.example/..",
            "https://a/%2e",
        ] {
            assert_eq!(name(bad), None, "{bad}");
        }
    }
}
