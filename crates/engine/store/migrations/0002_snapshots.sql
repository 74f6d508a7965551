-- Snapshots. Whose they are: a checkpoint has its number in its sandbox, what something else holds says what
-- that is, the others are for people.

CREATE TABLE snapshots (
    id TEXT PRIMARY KEY NOT NULL,
    state TEXT NOT NULL,
    sandbox_id TEXT,
    checkpoint BIGINT,
    held_by TEXT,
    comment TEXT,
    manifest TEXT NOT NULL,
    manifest_version BIGINT NOT NULL,
    digest TEXT,
    stored_bytes BIGINT NOT NULL,
    paused_us BIGINT,
    method TEXT,
    created_ms BIGINT NOT NULL,
    created_by TEXT
);
CREATE INDEX snapshots_by_age ON snapshots (created_ms, id);
CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox_id, checkpoint);

-- Where each reference points now.
CREATE TABLE snapshot_tags (
    name TEXT NOT NULL,
    tag TEXT NOT NULL,
    snapshot_id TEXT NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    PRIMARY KEY (name, tag)
);
CREATE INDEX snapshot_tags_by_snapshot ON snapshot_tags (snapshot_id);

-- The last number given to a checkpoint of each sandbox: a number never means two things.
CREATE TABLE checkpoint_numbers (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    last_number BIGINT NOT NULL
);

-- Sandboxes that are being put back to a snapshot: what was begun is finished at the next start.
CREATE TABLE rollbacks (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    snapshot_id TEXT NOT NULL
);
