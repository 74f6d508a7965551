//! How a sandbox in gVisor is reached, whose kernel (the *sentry*) is a program of the host: the driver shares a
//! directory with it, and the agent listens there. Over the second socket the driver asks for the things that only the
//! sentry can tell or do ([`crate::control`], in the frames of [`crate::serial`]); one question to a connection.

/// Variable of the agent's environment that names the directory inside.
pub const SOCKETS_VARIABLE: &str = "ATOLL_SOCKETS";
/// Where the agent listens for the host's connections.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Where it listens for the driver's questions.
pub const CONTROL_SOCKET: &str = "control.sock";
/// A file that keeps gVisor from covering an empty `/tmp` of the disk with one in memory. The agent removes it.
pub const TMP_MARK: &str = "tmp/.atoll";
