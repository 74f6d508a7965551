//! The questions of a driver to the machine that a sandbox runs in, over its control port. The host's kernel does these
//! things for a container; in a machine its own kernel has to be asked for them.
//!
//! One question at a time; the answer has its nonce. An answer comes from a guest and cannot be relied on: the host
//! bounds it and grants nothing for it.

use prost::Message;

/// A question.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ask {
    /// Comes back in [`Answer`].
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    /// The question.
    #[prost(oneof = "Question", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    pub question: Option<Question>,
}

/// The questions that there are.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Question {
    /// Be this sandbox. Once in the life of a machine that was restored.
    #[prost(message, tag = "2")]
    Become(Become),
    /// Hold to these limits from now on.
    #[prost(message, tag = "3")]
    Limit(Limits),
    /// Have this host name.
    #[prost(string, tag = "4")]
    Rename(String),
    /// Write out the disk and hold it still (`true`), or let it go on (`false`). It also goes on when the host
    /// hangs up.
    #[prost(bool, tag = "5")]
    Still(bool),
    /// Report the sandbox's use of resources; the value means nothing.
    #[prost(bool, tag = "6")]
    Measure(bool),
    /// A machine that was put to disk runs again: now is another time.
    #[prost(message, tag = "7")]
    Wake(Moment),
    /// Stop every process of the sandbox, and hold the disk still as with [`Question::Still`] (`true`); or let both go on
    /// (`false`). They also go on when the host hangs up.
    #[prost(bool, tag = "8")]
    Halt(bool),
    /// To a copy of a machine that was halted: be another sandbox, and let its processes go on.
    #[prost(message, tag = "9")]
    BecomeAnother(Become),
}

/// The time and randomness that make a moment different from every other: a restored machine would
/// repeat those that it was saved with.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Moment {
    /// The host's clock, nanoseconds since the epoch.
    #[prost(uint64, tag = "1")]
    pub clock_unix_ns: u64,
    /// Thirty-two fresh random bytes for the guest's generator.
    #[prost(bytes = "vec", tag = "2")]
    pub seed: Vec<u8>,
}

/// Limits that the guest's kernel enforces.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Limits {
    /// Memory of all processes of the sandbox, bytes.
    #[prost(uint64, tag = "1")]
    pub memory_bytes: u64,
    /// Processes and threads, the agent among them.
    #[prost(uint32, tag = "2")]
    pub pids: u32,
}

/// The identity of a machine.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Become {
    /// The sandbox.
    #[prost(string, tag = "1")]
    pub sandbox_id: String,
    /// Its host name.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// Content of `/etc/machine-id`.
    #[prost(string, tag = "3")]
    pub machine_id: String,
    /// Address of the resolver.
    #[prost(string, tag = "4")]
    pub resolver: String,
    /// Limits.
    #[prost(message, optional, tag = "5")]
    pub limits: Option<Limits>,
    /// Now.
    #[prost(message, optional, tag = "6")]
    pub moment: Option<Moment>,
    /// With [`Question::BecomeAnother`]: the one exec of the other sandbox that goes on as this one's.
    #[prost(message, optional, tag = "7")]
    pub carried: Option<Carried>,
}

/// An exec that a copy takes over, with the output that the host has not acknowledged.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Carried {
    /// Its id so far.
    #[prost(string, tag = "1")]
    pub was: String,
    /// Its id from now on.
    #[prost(string, tag = "2")]
    pub is: String,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Answer {
    /// The nonce of the question.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    /// Why it could not be done; empty when it was.
    #[prost(string, tag = "2")]
    pub error: String,
    /// To [`Question::Measure`]: processes and threads now, the agent among them.
    #[prost(uint32, tag = "3")]
    pub pids: u32,
    /// To [`Question::Measure`]: times that a process was killed because memory ran out.
    #[prost(uint64, tag = "4")]
    pub oom_kills: u64,
    /// To [`Question::Become`]: the image is at fault, and `error` says what is in the way.
    #[prost(bool, tag = "5")]
    pub bad_root: bool,
}
