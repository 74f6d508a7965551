//! Files and archives on their way into a sandbox and out of it, which may be paused meanwhile.
//!
//! A transfer that is under way when the sandbox is frozen goes on when it does. If that does not happen within
//! [`STILL_MAX`], the transfer ends with [`GuestError::StoodStill`]: neither a client nor the memory that a transfer
//! takes waits for ever. These are the calls that have no deadline of their own; all others have the protocol's.
//!
//! What may last for ever anyway stays open while the sandbox stands still, and goes on with it: the output of commands,
//! watches, connections to ports. They end with their clients, and their number is limited.

use std::sync::Arc;
use std::time::Duration;

use atoll_guest_protocol::client::{self, GuestClient, GuestError};
use atoll_guest_protocol::messages::{FileInfo, Read, Remove, Rename, Unpack, Write};
use bytes::Bytes;

use crate::boxed;

use super::downloads::Held;
use super::lease::GuestLease;
use super::shared::SandboxShared;

/// How long a transfer waits for a sandbox that stands still, by the engine's clock.
const STILL_MAX: Duration = Duration::from_secs(10 * 60);

/// Waits for a guest, but not for ever while it stands still.
#[derive(Debug, Clone)]
struct Patience(Arc<SandboxShared>);

impl Patience {
    /// Does `work`, which waits for the guest.
    async fn during<T>(&self, work: impl Future<Output = Result<T, GuestError>>) -> Result<T, GuestError> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.0.stood_still_for(STILL_MAX) => Err(GuestError::StoodStill),
        }
    }
}

impl GuestLease {
    fn patience(&self) -> Patience {
        Patience(Arc::clone(self.shared()))
    }

    /// [`GuestClient::read`].
    ///
    /// # Errors
    /// [`GuestError`]; [`GuestError::NoRoom`] when downloads hold all the memory that this one may have.
    #[boxed]
    pub async fn read(&self, request: Read) -> Result<FileReader, GuestError> {
        let (held, patience) = (self.hold_download()?, self.patience());
        let inner = patience.during(GuestClient::read(self, request)).await?;
        Ok(FileReader { info: inner.info.clone(), inner, patience, _held: held })
    }

    /// [`GuestClient::write`].
    ///
    /// # Errors
    /// [`GuestError`]. Most refusals come from the writer.
    #[boxed]
    pub async fn write(&self, request: Write) -> Result<FileWriter, GuestError> {
        let patience = self.patience();
        let inner = patience.during(GuestClient::write(self, request)).await?;
        Ok(FileWriter { inner, patience })
    }

    /// [`GuestClient::pack`].
    ///
    /// # Errors
    /// As [`Self::read`].
    #[boxed]
    pub async fn pack(&self, path: &str) -> Result<ByteStream, GuestError> {
        let (held, patience) = (self.hold_download()?, self.patience());
        let inner = patience.during(GuestClient::pack(self, path)).await?;
        Ok(ByteStream { inner, patience, _held: held })
    }

    /// [`GuestClient::unpack`].
    ///
    /// # Errors
    /// [`GuestError`]. Most refusals come from the writer.
    #[boxed]
    pub async fn unpack(&self, request: Unpack) -> Result<FileWriter, GuestError> {
        let patience = self.patience();
        let inner = patience.during(GuestClient::unpack(self, request)).await?;
        Ok(FileWriter { inner, patience })
    }

    /// [`GuestClient::remove`].
    ///
    /// # Errors
    /// [`GuestError`].
    #[boxed]
    pub async fn remove(&self, request: Remove) -> Result<(), GuestError> {
        self.patience().during(GuestClient::remove(self, request)).await
    }

    /// [`GuestClient::rename`].
    ///
    /// # Errors
    /// [`GuestError`].
    #[boxed]
    pub async fn rename(&self, request: Rename) -> Result<(), GuestError> {
        self.patience().during(GuestClient::rename(self, request)).await
    }
}

/// A file being read. It has its memory for as long as it is there, also when all has come.
#[derive(Debug)]
pub struct FileReader {
    /// The file's record. Its size may differ from the bytes that come: files change.
    pub info: FileInfo,
    inner: client::FileReader,
    patience: Patience,
    _held: Held,
}

impl FileReader {
    /// The next bytes, or `None` at the end of the part that was asked for.
    ///
    /// # Errors
    /// [`GuestError`].
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        self.patience.during(self.inner.next()).await
    }
}

/// Bytes that the guest sends. It has its memory for as long as it is there, also when all has come.
#[derive(Debug)]
pub struct ByteStream {
    inner: client::ByteStream,
    patience: Patience,
    _held: Held,
}

impl ByteStream {
    /// The next bytes, or `None` when all were there.
    ///
    /// # Errors
    /// [`GuestError`].
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        self.patience.during(self.inner.next()).await
    }
}

/// Bytes that the guest takes: a file or an archive. Dropping it gives up: a file does not appear, an archive is
/// unpacked so far.
#[derive(Debug)]
pub struct FileWriter {
    inner: client::FileWriter,
    patience: Patience,
}

impl FileWriter {
    /// Sends bytes; waits when the guest is slower. A send that was dropped half-way makes all that follow fail.
    ///
    /// # Errors
    /// [`GuestError`]; when the guest gave up, its reason.
    #[boxed]
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), GuestError> {
        self.patience.during(self.inner.send(bytes)).await
    }

    /// Ends the body and waits until the guest is done; gives the number of bytes written.
    ///
    /// # Errors
    /// [`GuestError`]; the file did not appear then, or, after [`GuestError::StoodStill`], may appear when the sandbox
    /// goes on.
    #[boxed]
    pub async fn finish(self) -> Result<u64, GuestError> {
        self.patience.during(self.inner.finish()).await
    }
}
