//! Messages about connections into the sandbox and out of it: its ports, its explicit proxy, sessions of SFTP. They open a
//! connection; its bytes follow as data records.

message! {
    /// Connects to a port on the sandbox's loopback (`dial`): [`Done`](super::Done) when connected, then data records both
    /// ways; end of body is end-of-file of that direction. The host tells by [`Ack`](super::Ack) how many bytes it has
    /// passed on.
    Dial {
        /// TCP port.
        #[prost(uint32, tag = "1")] pub port: u32,
        /// Most bytes under way to the host that it has not acknowledged; 0 for no limit. A connection that its client
        /// does not read must not use up the window that all operations share.
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
        /// To the explicit proxy of the sandbox's network instead: `port` is not looked at.
        #[prost(bool, tag = "3")] pub proxy: bool,
    }
    /// Listens on a port of the sandbox's loopback (`listen`): [`Listening`], then an [`Incoming`] for each
    /// connection. The guest stops listening when the stream ends.
    Listen {
        /// TCP port; 0 for any.
        #[prost(uint32, tag = "1")] pub port: u32,
    }
    /// Answer to [`Listen`].
    Listening {
        /// The port.
        #[prost(uint32, tag = "1")] pub port: u32,
    }
    /// A program in the sandbox connected. The connection waits a while to be taken.
    Incoming {
        /// Names the connection.
        #[prost(uint64, tag = "1")] pub connection: u64,
    }
    /// Takes a connection (`accept`): goes on like [`Dial`].
    Accept {
        /// From [`Incoming`].
        #[prost(uint64, tag = "1")] pub connection: u64,
        /// As in [`Dial`].
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
    }
    /// An SFTP session (`sftp`): goes on like [`Dial`]; the data are the protocol's packets.
    Sftp {
        /// The user it is for: name or id, optionally `:group`; empty for root.
        #[prost(string, tag = "1")] pub user: String,
        /// As in [`Dial`].
        #[prost(uint32, tag = "2")] pub window_bytes: u32,
        /// Where relative paths begin; empty, or missing inside, for the user's home.
        #[prost(string, tag = "3")] pub cwd: String,
    }
    /// Lists listening TCP ports (`ports`).
    ListPorts {}
    /// Answer to [`ListPorts`].
    PortList {
        /// Ports, ascending, each once.
        #[prost(uint32, repeated, tag = "1")] pub ports: Vec<u32>,
    }
}
