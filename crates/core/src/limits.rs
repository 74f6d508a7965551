//! A limit on everything, named, with its unit last. Edges are tested where they are enforced.

/// Largest JSON body of a request, bytes.
pub const JSON_BODY_MAX_BYTES: usize = 1 << 20;
/// Largest number of environment variables in one spec.
pub const ENV_MAX_COUNT: usize = 1024;
/// Longest name of an environment variable, bytes.
pub const ENV_NAME_MAX_BYTES: usize = 256;
/// Longest value of an environment variable, bytes. Linux allows 128 KiB for one string.
pub const ENV_VALUE_MAX_BYTES: usize = 120 << 10;
/// All names and values of one environment together, bytes.
pub const ENV_TOTAL_MAX_BYTES: usize = 512 << 10;
/// Largest number of labels.
pub const LABELS_MAX_COUNT: usize = 64;
/// Longest label key, bytes.
pub const LABEL_KEY_MAX_BYTES: usize = 128;
/// Longest label value, bytes.
pub const LABEL_VALUE_MAX_BYTES: usize = 1024;
/// Longest name of a sandbox or template: it is a DNS label.
pub const NAME_MAX_BYTES: usize = 63;
/// Longest image reference, bytes.
pub const IMAGE_REF_MAX_BYTES: usize = 512;
/// Largest number of arguments of a command.
pub const ARGV_MAX_COUNT: usize = 4096;
/// Longest single argument, bytes. Linux allows 128 KiB for one string.
pub const ARG_MAX_BYTES: usize = 120 << 10;
/// All arguments together, bytes.
pub const ARGV_TOTAL_MAX_BYTES: usize = 768 << 10;
/// Longest path inside a sandbox, bytes (Linux `PATH_MAX` without its NUL).
pub const PATH_MAX_BYTES: usize = 4095;
/// Longest user name or id, bytes.
pub const USER_MAX_BYTES: usize = 64;
/// Longest idempotency key, bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 128;
/// Longest time to live and longest timeout: one year, milliseconds.
pub const DURATION_MAX_MS: u64 = 365 * 24 * 3600 * 1000;
/// Largest terminal, columns or rows.
pub const TTY_SIZE_MAX: u16 = 10_000;
/// Least CPU a sandbox can have, thousandths of a core.
pub const CPU_MIN_MILLIS: u32 = 10;
/// Most CPU a sandbox can have, thousandths of a core.
pub const CPU_MAX_MILLIS: u32 = 1_024_000;
/// Least memory a sandbox can have, bytes. Below this the guest agent cannot work.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;
/// Most memory a sandbox can have, bytes.
pub const MEMORY_MAX_BYTES: u64 = 16 << 40;
/// Fewest processes a sandbox can have.
pub const PIDS_MIN: u32 = 8;
/// Most processes a sandbox can have (Linux `PID_MAX_LIMIT`).
pub const PIDS_MAX: u32 = 4 << 20;
/// Smallest writable disk, bytes.
pub const DISK_MIN_BYTES: u64 = 16 << 20;
/// Largest writable disk, bytes.
pub const DISK_MAX_BYTES: u64 = 16 << 40;
/// Most output that one exec may keep, bytes.
pub const OUTPUT_KEEP_MAX_BYTES: u64 = 16 << 30;
/// Least output that one exec may keep, bytes: one log segment must fit.
pub const OUTPUT_KEEP_MIN_BYTES: u64 = 64 << 10;
/// Output that an exec keeps when it does not say, bytes.
pub const OUTPUT_KEEP_DEFAULT_BYTES: u64 = 256 << 20;
/// Largest number of things asked for in one batch call.
pub const BATCH_MAX_COUNT: usize = 256;
/// Largest page of a listing.
pub const PAGE_MAX_COUNT: u32 = 1000;
/// Page of a listing when the caller does not say.
pub const PAGE_DEFAULT_COUNT: u32 = 100;
/// Longest time one call may wait for something (long-poll), milliseconds.
pub const WAIT_MAX_MS: u64 = 60_000;
/// Longest piece of standard input in one call, bytes.
pub const STDIN_CHUNK_MAX_BYTES: usize = 1 << 20;
/// Execs of one sandbox that may run at once.
pub const EXECS_RUNNING_MAX_COUNT: usize = 512;
/// Ended execs that one sandbox keeps; the oldest go first, with their output.
pub const EXECS_KEPT_MAX_COUNT: usize = 10_000;
/// Most egress rules of one sandbox.
pub const EGRESS_RULES_MAX_COUNT: usize = 512;
/// Longest name of an egress rule, bytes.
pub const EGRESS_RULE_NAME_MAX_BYTES: usize = 128;
/// Longest path pattern of an egress rule, bytes.
pub const EGRESS_RULE_PATH_MAX_BYTES: usize = 1024;
/// Most port ranges, and most methods, of one egress rule.
pub const EGRESS_RULE_PORTS_MAX_COUNT: usize = 32;
/// Connections to the outside that a sandbox may have at once when its policy does not say.
pub const EGRESS_CONNECTIONS_DEFAULT_COUNT: u32 = 512;
/// Most connections to the outside that a policy may grant.
pub const EGRESS_CONNECTIONS_MAX_COUNT: u32 = 16_384;
/// Least bandwidth that a policy may grant, bytes per second.
pub const EGRESS_BANDWIDTH_MIN_BYTES: u64 = 1024;
