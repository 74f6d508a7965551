-- How a sandbox is paused, and since when; how long it was before, all pauses together; which boot it is in.
ALTER TABLE sandboxes ADD COLUMN paused TEXT;
ALTER TABLE sandboxes ADD COLUMN paused_ms BIGINT;
ALTER TABLE sandboxes ADD COLUMN pauses_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';

-- CPU time of an exec, and its sandbox's pauses_ms when it began: what was paused before is no time of its own.
ALTER TABLE execs ADD COLUMN cpu_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE execs ADD COLUMN pauses_before_ms BIGINT NOT NULL DEFAULT 0;

-- What was used, for each hour, sandbox and API key ('' for none). Outlives the sandbox and the key.
CREATE TABLE usage (
    hour_ms BIGINT NOT NULL,
    sandbox_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    cpu_us BIGINT NOT NULL,
    memory_byte_seconds BIGINT NOT NULL,
    disk_byte_seconds BIGINT NOT NULL,
    running_ms BIGINT NOT NULL,
    egress_bytes BIGINT NOT NULL,
    requests BIGINT NOT NULL,
    execs BIGINT NOT NULL,
    exec_cpu_us BIGINT NOT NULL,
    PRIMARY KEY (hour_ms, sandbox_id, key_id)
);
CREATE INDEX usage_by_sandbox ON usage (sandbox_id, hour_ms);

-- Up to where a living sandbox was measured: the kernel's counter then, and when. Written with the usage.
CREATE TABLE usage_marks (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    cpu_us BIGINT NOT NULL,
    at_ms BIGINT NOT NULL
);
