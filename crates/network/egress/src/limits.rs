//! Limits of the gateway.

use std::time::Duration;

/// Bytes of a connection that are looked at before its protocol is known. A TLS hello with post-quantum keys has 2 KiB.
pub const SNIFF_MAX_BYTES: usize = 32 << 10;
/// How long a client may stay silent before it is taken for a client that waits for the server to speak first.
pub const SILENCE: Duration = Duration::from_millis(300);
/// How long the first bytes of a connection may take.
pub const SNIFF_TIMEOUT: Duration = Duration::from_secs(15);
/// How long connecting to one address outside may take.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the head of a request may take.
pub const HTTP_HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Headers of one request.
pub const HTTP_HEADERS_MAX_COUNT: usize = 200;
/// Bytes of the head of a request, and bytes that are read ahead of a slow reader.
pub const HTTP_BUFFER_MAX_BYTES: usize = 64 << 10;
/// Names with addresses that are remembered for one sandbox. The oldest go first.
pub const NAMES_MAX_COUNT: usize = 4096;
/// Of these, names that are remembered for one address. A connection whose name is not certain is decided upon for each of
/// them, so their number is the work that a sandbox makes for the server with a connection.
pub const NAMES_OF_ADDRESS_MAX_COUNT: usize = 64;
/// How long an answer of the resolver counts, at least: programs keep addresses longer than they should.
pub const NAME_KEPT: Duration = Duration::from_secs(3600);
/// Destinations that bytes are counted for, for one sandbox. Further ones are counted together.
pub const DESTINATIONS_MAX_COUNT: usize = 1024;
/// Denials that are remembered for one sandbox. Equal ones are counted.
pub const DENIALS_MAX_COUNT: usize = 200;
/// Refusals that a sandbox is told when it asks.
pub const DENIALS_SHOWN_MAX_COUNT: usize = 20;
/// Questions of one sandbox that wait for an answer at once.
pub const DNS_WAITING_MAX_COUNT: usize = 64;
/// Questions per second that one sandbox may ask, and how many at once.
pub const DNS_QUESTIONS_PER_S: u64 = 200;
/// Questions per second of one sandbox that are looked at at all: beyond that the kernel throws them away.
pub const DNS_RECEIVED_PER_S: u64 = 1000;
/// Questions that are looked at at once after a while without any.
pub const DNS_RECEIVED_BURST_COUNT: u64 = 4000;
/// Questions per second that are passed on to resolvers for one sandbox: answers from the cache are free.
pub const DNS_LOOKUPS_PER_S: u64 = 20;
/// Seconds for which unused questions and lookups are saved up.
pub const DNS_BURST_S: u64 = 10;
/// Longest name that is looked up unless a rule spells it out, bytes. Names carry data; long ones carry more.
pub const DNS_NAME_MAX_BYTES: usize = 128;
/// How long one resolver may take to answer.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(3);
/// Answers that are remembered, over all sandboxes.
pub const DNS_CACHE_MAX_COUNT: usize = 10_000;
/// How long an answer is remembered at most.
pub const DNS_TTL_MAX: Duration = Duration::from_secs(3600);
/// Most of the host's list of names that is read, bytes: lists of blocked hosts are long.
pub const HOSTS_MAX_BYTES: u64 = 8 << 20;
/// Addresses that one answer may give.
pub const DNS_ADDRESSES_MAX_COUNT: usize = 32;
/// Connections that one sandbox without internet may hold: enough to be told why nothing passes.
pub const CLOSED_CONNECTIONS_MAX_COUNT: usize = 32;
/// New connections per second of one sandbox, over a longer time.
pub const OPENED_PER_S: u64 = 500;
/// Seconds for which unused ones are saved up.
pub const OPENED_BURST_S: u64 = 4;
/// Descriptors that one connection may need: two sockets, and a pipe in each direction.
pub const CONNECTION_DESCRIPTORS_COUNT: usize = 6;
/// Part of all connections, and of all bytes on their way, that one sandbox may hold, even with a higher limit of its
/// own: one of so many parts.
pub const SHARE_OF_ONE: usize = 4;
/// Part of the host's memory that the bytes on their way of all sandboxes may take: one of so many parts.
pub const BUFFERED_HOST_PART: usize = 8;
/// Bytes on their way that one sandbox may hold out of what all share, whatever the host's memory.
pub const BUFFERED_OF_ONE_MAX_BYTES: usize = 128 << 20;
/// Bytes on their way that each sandbox may hold besides, whatever the others do.
pub const BUFFERED_OWN_BYTES: usize = 4 << 20;
/// Bytes of heads of requests without a whole answer, over all connections of one sandbox that are looked into. Further
/// requests are refused.
pub const HEADS_MAX_BYTES: usize = 8 << 20;
/// What a piece of a body, or a header, costs besides its bytes.
pub const FRAME_COST_BYTES: usize = 256;
/// Connections of one sandbox that are looked into at once.
pub const INTERCEPTED_MAX_COUNT: usize = 128;
/// TLS handshakes per second that the gateway does for one sandbox. Further ones wait.
pub const HANDSHAKES_PER_S: u64 = 50;
/// Seconds for which unused handshakes are saved up.
pub const HANDSHAKES_BURST_S: u64 = 4;
/// How long a handshake looks whether its turn has come.
pub const HANDSHAKE_TURN: Duration = Duration::from_millis(50);
/// First refusals of their kind that are logged per second for one sandbox, and how many at once.
pub const DENIALS_LOGGED_PER_S: u64 = 1;
/// Seconds for which unused lines are saved up.
pub const DENIALS_LOGGED_BURST_S: u64 = 20;
/// Bytes that are copied at once.
pub const COPY_BYTES: u32 = 32 << 10;
/// After so many bytes in one direction a connection gets a pipe, so that the kernel moves the rest.
pub const SPLICE_AFTER_BYTES: u64 = 256 << 10;
/// Size of that pipe, bytes.
pub const PIPE_BYTES: u32 = 1 << 20;
