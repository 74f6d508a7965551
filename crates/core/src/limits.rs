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
/// Largest number of annotations.
pub const ANNOTATIONS_MAX_COUNT: usize = 32;
/// Longest key of an annotation, bytes.
pub const ANNOTATION_KEY_MAX_BYTES: usize = 128;
/// All keys and values of a sandbox's annotations together, bytes.
pub const ANNOTATIONS_TOTAL_MAX_BYTES: usize = 128 << 10;
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
/// Longest word to find an exec by, bytes.
pub const EXEC_TAG_MAX_BYTES: usize = 1024;
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
/// Least disk I/O that a sandbox can be limited to, bytes per second. With less a command would take minutes to start.
pub const IO_BYTES_MIN: u64 = 1 << 20;
/// Most disk I/O that a sandbox can be limited to, bytes per second.
pub const IO_BYTES_MAX: u64 = 1 << 40;
/// Fewest disk operations that a sandbox can be limited to, per second.
pub const IO_OPERATIONS_MIN: u32 = 50;
/// Most disk operations that a sandbox can be limited to, per second.
pub const IO_OPERATIONS_MAX: u32 = 100_000_000;
/// Most output that one exec may keep, bytes.
pub const OUTPUT_KEEP_MAX_BYTES: u64 = 16 << 30;
/// Least output that one exec may keep, bytes: one log segment must fit.
pub const OUTPUT_KEEP_MIN_BYTES: u64 = 64 << 10;
/// Output that an exec keeps when it does not say, bytes.
pub const OUTPUT_KEEP_DEFAULT_BYTES: u64 = 256 << 20;
/// Output that all execs of a sandbox keep together is this part of its disk's limit, and at least so many bytes.
pub const OUTPUT_DISK_PART: u64 = 4;
/// See [`OUTPUT_DISK_PART`].
pub const OUTPUT_SANDBOX_MIN_BYTES: u64 = 64 << 20;
/// Largest number of things asked for in one batch call.
pub const BATCH_MAX_COUNT: usize = 256;
/// Largest page of a listing.
pub const PAGE_MAX_COUNT: u32 = 1000;
/// Page of a listing when the caller does not say.
pub const PAGE_DEFAULT_COUNT: u32 = 100;
/// Longest time one call may wait for an event (long-poll), milliseconds.
pub const WAIT_MAX_MS: u64 = 60_000;
/// Longest piece of standard input in one call, bytes.
pub const STDIN_CHUNK_MAX_BYTES: usize = 1 << 20;
/// Execs of one sandbox that may run at once.
pub const EXECS_RUNNING_MAX_COUNT: usize = 512;
/// Ended execs that one sandbox keeps; the oldest go first, with their output.
pub const EXECS_KEPT_MAX_COUNT: usize = 10_000;
/// Longest name of a secret, bytes.
pub const SECRET_NAME_MAX_BYTES: usize = 128;
/// Longest value of a secret, bytes: it must fit into a header.
pub const SECRET_VALUE_MAX_BYTES: usize = 32 << 10;
/// Shortest value of a secret, bytes: shorter ones would be found by chance, and masked everywhere.
pub const SECRET_VALUE_MIN_BYTES: usize = 4;
/// Most secrets of an installation, those of single sandboxes included.
pub const SECRETS_MAX_COUNT: usize = 20_000;
/// Most secrets of one sandbox alone.
pub const SECRETS_PRIVATE_MAX_COUNT: usize = 64;
/// Versions of a secret that are kept; the oldest go first.
pub const SECRET_VERSIONS_MAX_COUNT: u32 = 16;
/// Most entries in each list of a secret's scope.
pub const SECRET_SCOPE_MAX_COUNT: usize = 64;
/// Uses of secrets that are kept; the oldest go first.
pub const SECRET_USES_MAX_COUNT: u64 = 100_000;
/// Longest text with references to secrets, bytes.
pub const TEMPLATE_TEXT_MAX_BYTES: usize = 8 << 10;
/// Most injection rules of a sandbox.
pub const INJECT_RULES_MAX_COUNT: usize = 64;
/// Most hosts, paths, headers, parameters or placeholders of one injection rule.
pub const INJECT_PARTS_MAX_COUNT: usize = 64;
/// Shortest placeholder, bytes: it must not occur by chance.
pub const PLACEHOLDER_MIN_BYTES: usize = 12;
/// Longest placeholder, bytes.
pub const PLACEHOLDER_MAX_BYTES: usize = 256;
/// Most members of one warm pool.
pub const POOL_MAX_COUNT: u32 = 1000;
/// Least age at which a pool may replace its members, milliseconds.
pub const POOL_AGE_MIN_MS: u64 = 1000;
/// Memory that a member of a pool is taken to need at least, bytes: its guest agent's, and the kernel's own for it.
pub const POOL_MEMBER_MIN_BYTES: u64 = 8 << 20;
/// Most warm pools that can be set up by name.
pub const POOLS_MAX_COUNT: usize = 256;
/// Connections to ports of one sandbox at once, of all kinds: HTTP, tunnels, SSH forwardings.
pub const PORT_CONNECTIONS_MAX_COUNT: usize = 2048;
/// Accesses that one sandbox may have.
pub const ACCESSES_MAX_COUNT: usize = 1000;
/// Longest name of an access or SSH key, bytes.
pub const ACCESS_NAME_MAX_BYTES: usize = 128;
/// SSH keys of one API key.
pub const SSH_KEYS_MAX_COUNT: usize = 100;
/// Ports of the client that one tunnel may show inside a sandbox.
pub const TUNNEL_LISTENERS_MAX_COUNT: usize = 32;
/// Longest tag of a template, bytes.
pub const TEMPLATE_TAG_MAX_BYTES: usize = 128;
/// Tags of one template.
pub const TEMPLATE_TAGS_MAX_COUNT: usize = 256;
/// Earlier meanings of one tag that are remembered; the oldest go.
pub const TAG_ASSIGNMENTS_MAX_COUNT: usize = 100;
/// Longest tag of a snapshot, bytes.
pub const SNAPSHOT_TAG_MAX_BYTES: usize = 63;
/// Tags of one snapshot.
pub const SNAPSHOT_TAGS_MAX_COUNT: usize = 64;
/// Longest comment of a snapshot, bytes.
pub const SNAPSHOT_COMMENT_MAX_BYTES: usize = 256;
/// Snapshots of one server, checkpoints and snapshots that other records hold included.
pub const SNAPSHOTS_MAX_COUNT: u64 = 20_000;
/// Checkpoints of one sandbox; beyond it the oldest go.
pub const CHECKPOINTS_MAX_COUNT: u32 = 1000;
/// Children of one fork.
pub const FORK_MAX_COUNT: u32 = 256;
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
/// Most keys that can have a role on one sandbox.
pub const GRANTS_MAX_COUNT: usize = 256;
/// Longest name of the holder of a lease, bytes.
pub const LEASE_HOLDER_MAX_BYTES: usize = 128;
/// Longest lease without being renewed: a day, milliseconds.
pub const LEASE_MAX_MS: u64 = 24 * 3600 * 1000;
/// Volumes of one server.
pub const VOLUMES_MAX_COUNT: usize = 10_000;
/// Volumes of one sandbox.
pub const VOLUMES_PER_SANDBOX_MAX_COUNT: usize = 16;
/// Agent layers in one sandbox.
pub const LAYERS_PER_SANDBOX_MAX_COUNT: usize = 16;
/// Names in the path of a directory of a volume that is mounted by itself.
pub const SUBPATH_MAX_COUNT: usize = 64;
/// Smallest volume, bytes: a file system with a journal must fit.
pub const VOLUME_MIN_BYTES: u64 = 32 << 20;
/// Largest volume, bytes.
pub const VOLUME_MAX_BYTES: u64 = 16 << 40;
/// Shortest idle time after which a sandbox may be frozen, milliseconds. Freezing more often would cost more than
/// it saves.
pub const IDLE_FREEZE_MIN_MS: u64 = 10;
/// How long hourly rows of usage are kept, milliseconds: 13 months.
pub const USAGE_KEPT_MS: u64 = 396 * 24 * 3600 * 1000;
/// Most rows that one query of usage gives.
pub const USAGE_ROWS_MAX_COUNT: u32 = 10_000;
/// Largest Dockerfile, bytes.
pub const DOCKERFILE_MAX_BYTES: usize = 512 << 10;
/// Largest number of instructions of a Dockerfile, or of steps.
pub const BUILD_INSTRUCTIONS_MAX_COUNT: usize = 1000;
/// Largest number of stages of a Dockerfile.
pub const BUILD_STAGES_MAX_COUNT: usize = 64;
/// Largest number of build arguments.
pub const BUILD_ARGS_MAX_COUNT: usize = 256;
/// Most secrets that a build is given.
pub const BUILD_SECRETS_MAX_COUNT: usize = 32;
/// Longest secret of a build, bytes: a key file, not an archive.
pub const BUILD_SECRET_MAX_BYTES: usize = 64 << 10;
/// Largest context of a build, bytes of all its files.
pub const BUILD_CONTEXT_MAX_BYTES: u64 = 4 << 30;
/// Largest number of entries of a context.
pub const BUILD_CONTEXT_MAX_COUNT: usize = 200_000;
/// Names of a context's entries, and what its links lead to, bytes of all together: they are in memory until the build ends.
pub const BUILD_CONTEXT_NAMES_MAX_BYTES: usize = 32 << 20;
/// Memory for what the contexts of all builds that have not ended consist of (names, kinds, digests), bytes. A project, or a key
/// of none, has no more than it leaves to others.
pub const BUILD_CONTEXTS_MEMORY_MAX_BYTES: usize = 256 << 20;
/// Names of files and values of variables in the steps of one build, bytes: they are in memory while it runs.
pub const BUILD_PLAN_MAX_BYTES: usize = 128 << 20;
/// Comparisons of characters, of the patterns of one build with the names in its context: half a minute or so of a thread.
pub const BUILD_PLAN_MAX_WORK: u64 = 30_000_000_000;
/// A build to which nobody begins to send its context is given up after this, milliseconds.
pub const BUILD_CONTEXT_WAIT_MS: u64 = 15 * 60 * 1000;
/// A build whose context is not here as a whole after this is given up, milliseconds.
pub const BUILD_CONTEXT_WHOLE_MS: u64 = 24 * 3600 * 1000;
/// Builds that run at once, of all keys; more wait. A project, or a key of none, has no more than it leaves to others.
pub const BUILDS_RUNNING_MAX_COUNT: usize = 8;
/// Builds that have not ended, of all keys. A project, or a key of none, has no more than it leaves to others.
pub const BUILDS_OPEN_MAX_COUNT: usize = 128;
/// Ended builds that are kept; the oldest go first, with their log.
pub const BUILDS_KEPT_MAX_COUNT: usize = 500;
/// Log that one build keeps, bytes; the oldest goes first.
pub const BUILD_LOG_MAX_BYTES: u64 = 64 << 20;
/// Longest build, milliseconds: one day.
pub const BUILD_TIMEOUT_MAX_MS: u64 = 24 * 3600 * 1000;
/// Longest build when the caller does not say, milliseconds.
pub const BUILD_TIMEOUT_DEFAULT_MS: u64 = 3600 * 1000;
/// Size of the cache of build steps, bytes, when the operator does not say.
pub const BUILD_CACHE_DEFAULT_BYTES: u64 = 20 << 30;
/// Longest wait for a sandbox to be ready, milliseconds.
pub const READY_TIMEOUT_MAX_MS: u64 = 600 * 1000;
/// Wait for a sandbox to be ready when the template does not say, milliseconds.
pub const READY_TIMEOUT_DEFAULT_MS: u64 = 60 * 1000;
/// Services of one sandbox.
pub const SERVICES_MAX_COUNT: usize = 32;
/// Runs of a service whose output can be read; the oldest go first.
pub const SERVICE_RUNS_KEPT_MAX_COUNT: usize = 64;
/// Longest path that a probe of a service asks for, bytes.
pub const SERVICE_PATH_MAX_BYTES: usize = 1024;
/// Longest time of a probe of a service, milliseconds.
pub const SERVICE_PROBE_TIMEOUT_MAX_MS: u64 = 600_000;
/// Contexts of one sandbox: each is a kernel.
pub const CONTEXTS_MAX_COUNT: usize = 64;
/// Longest name of a context's language, bytes.
pub const CONTEXT_LANGUAGE_MAX_BYTES: usize = 32;
/// Longest code of one cell, bytes.
pub const CELL_CODE_MAX_BYTES: usize = 512 << 10;
/// Longest event that a cell causes, bytes of JSON.
pub const CELL_EVENT_MAX_BYTES: usize = 8 << 20;
/// Output of one cell that is kept, bytes; the oldest goes first.
pub const CELL_OUTPUT_MAX_BYTES: u64 = 64 << 20;
/// Agents of one server.
pub const AGENTS_MAX_COUNT: usize = 1000;
/// Sessions of one agent.
pub const AGENT_SESSIONS_MAX_COUNT: usize = 256;
/// Sessions of all agents of one server. With the size of each, this bounds their share of the database.
pub const AGENT_SESSIONS_ALL_MAX_COUNT: usize = 4096;
/// Longest name of a thread, bytes.
pub const AGENT_THREAD_MAX_BYTES: usize = 128;
/// Longest message to an agent, bytes.
pub const AGENT_MESSAGE_MAX_BYTES: usize = 256 << 10;
/// Messages of one session that wait for the agent.
pub const AGENT_MESSAGES_WAITING_MAX_COUNT: usize = 64;
/// Schedules of one agent.
pub const AGENT_SCHEDULES_MAX_COUNT: usize = 32;
/// Schedules of all agents of one server.
pub const AGENT_SCHEDULES_ALL_MAX_COUNT: usize = 4096;
/// Schedules of all agents in one sandbox.
pub const AGENT_SCHEDULES_SANDBOX_MAX_COUNT: usize = 256;
/// Longest message of a schedule, bytes: the server has all of them in memory.
pub const AGENT_SCHEDULE_TEXT_MAX_BYTES: usize = 16 << 10;
/// Shortest time between two messages of a schedule, milliseconds.
pub const AGENT_SCHEDULE_EVERY_MIN_MS: u64 = 1000;
/// Longest cron expression, and longest name of its time zone, bytes.
pub const AGENT_SCHEDULE_CRON_MAX_BYTES: usize = 128;
/// Largest event that an agent causes, bytes of JSON.
pub const AGENT_EVENT_MAX_BYTES: usize = 32 << 10;
/// Events that one session keeps; the oldest go first.
pub const AGENT_EVENTS_KEPT_MAX_COUNT: u64 = 10_000;
/// Size of these events together, bytes of JSON.
pub const AGENT_EVENTS_KEPT_MAX_BYTES: u64 = 8 << 20;
/// Pause between looks at whether a sandbox is ready, milliseconds.
pub const READY_INTERVAL_DEFAULT_MS: u64 = 100;
/// Most rules about programs of one sandbox.
pub const EXECUTION_RULES_MAX_COUNT: usize = 256;
/// Most programs that the network policy of one sandbox tells apart.
pub const EGRESS_ORIGINS_MAX_COUNT: usize = 24;
/// Most profiles of one sandbox.
pub const PROFILES_MAX_COUNT: usize = 16;
/// Paths of one sandbox whose changes are told.
pub const TRACE_PATHS_MAX_COUNT: usize = 16;
/// Longest name of a Debian package, bytes.
pub const PACKAGE_NAME_MAX_BYTES: usize = 128;
/// Least memory of a process of a profile, bytes: with less no program starts.
pub const PROFILE_MEMORY_MIN_BYTES: u64 = 8 << 20;
/// Most programs that one profile names.
pub const PROFILE_STEPS_MAX_COUNT: usize = 64;
/// Most paths of each kind that one profile names.
pub const PROFILE_PATHS_MAX_COUNT: usize = 32;
/// Longest message of such a rule, bytes.
pub const EXECUTION_MESSAGE_MAX_BYTES: usize = 512;
