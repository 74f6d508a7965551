//! Carries bytes between a sandbox and the outside as they are.
//!
//! A connection begins with copying through a small buffer; one that carries much gets a pipe, and the
//! kernel moves the bytes (`splice`) without this process seeing them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::budget::Lasting;
use crate::client::ClientStream;
use crate::dial::{Account, UpstreamStream};
use crate::limits::{COPY_BYTES, PIPE_BYTES, SPLICE_AFTER_BYTES};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of the sandbox.
    Out,
    /// Into the sandbox.
    In,
}

/// Carries both ways until both ends are done, or one breaks.
pub(crate) async fn relay(mut client: ClientStream, upstream: UpstreamStream) -> io::Result<()> {
    let (upstream, account) = upstream.into_parts();
    send(&client.take_ahead(), &upstream, &account).await?;
    tokio::try_join!(
        pump(client.socket(), &upstream, Direction::Out, &account),
        pump(&upstream, client.socket(), Direction::In, &account),
    )?;
    Ok(())
}

/// Sends bytes that were read ahead.
pub(crate) async fn send(ahead: &[u8], upstream: &TcpStream, account: &Account) -> io::Result<()> {
    write_all(upstream, ahead).await?;
    charge(Direction::Out, account, ahead.len()).await;
    Ok(())
}

/// Carries one way until the end, which is passed on.
pub(crate) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    account: &Account,
) -> io::Result<()> {
    let mut carried = 0;
    while carried < SPLICE_AFTER_BYTES {
        match copy_some(from, to, direction, account).await? {
            0 => return end(to),
            count => carried += count as u64,
        }
    }
    let Some((input, output, _room)) = pipe(account) else {
        while copy_some(from, to, direction, account).await? > 0 {}
        return end(to);
    };
    loop {
        let count = splice_in(from, &output, portion(direction, account, PIPE_BYTES as usize)).await?;
        if count == 0 {
            return end(to);
        }
        splice_out(&input, to, count).await?;
        charge(direction, account, count).await;
    }
}

/// Copies what there is to read; 0 at the end. A connection on which nothing comes holds no memory.
async fn copy_some(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    account: &Account,
) -> io::Result<usize> {
    loop {
        from.readable().await?;
        let room = account.budget().hold(COPY_BYTES).await;
        let mut buffer = vec![0; portion(direction, account, COPY_BYTES as usize)];
        let count = match from.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        write_all(to, &buffer[..count]).await?;
        // A connection that rests holds no memory either.
        drop((buffer, room));
        charge(direction, account, count).await;
        return Ok(count);
    }
}

/// Counts bytes that were carried, and rests until the sandbox's bandwidth has paid for them.
async fn charge(direction: Direction, account: &Account, count: usize) {
    match direction {
        Direction::Out => account.up().wait(account.sent(count)).await,
        Direction::In => account.down().wait(account.received(count)).await,
    }
}

fn portion(direction: Direction, account: &Account, most: usize) -> usize {
    let bucket = match direction {
        Direction::Out => account.up(),
        Direction::In => account.down(),
    };
    bucket.portion().map_or(most, |portion| portion.min(most))
}

/// A pipe with its room among the bytes on their way. Without room, or without descriptors, it goes on more slowly.
fn pipe(account: &Account) -> Option<(OwnedFd, OwnedFd, Lasting)> {
    let room = account.budget().try_hold_lasting(PIPE_BYTES)?;
    let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
    // The kernel's default of 64 KiB will do where more is not to be had.
    let _ = rustix::pipe::fcntl_setpipe_size(&ends.1, PIPE_BYTES as usize);
    Some((ends.0, ends.1, room))
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Both ends of the pipe and both sockets do not block.
fn splice(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, bytes: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(rustix::pipe::splice(from, None, to, None, bytes, flags)?)
}

async fn splice_in(from: &TcpStream, pipe: &OwnedFd, most: usize) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_io(Interest::READABLE, || splice(from, pipe, most)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

async fn splice_out(pipe: &OwnedFd, to: &TcpStream, mut left: usize) -> io::Result<()> {
    while left > 0 {
        to.writable().await?;
        match to.try_io(Interest::WRITABLE, || splice(pipe, to, left)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => left -= count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Passes the end of one way on. The other way may go on.
pub(crate) fn end(to: &TcpStream) -> io::Result<()> {
    match rustix::net::shutdown(to, Shutdown::Write) {
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
