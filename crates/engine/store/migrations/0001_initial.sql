-- One text for SQLite and PostgreSQL: TEXT, BIGINT and BYTEA (which SQLite stores as it comes) only.
-- Times are milliseconds since the epoch. Specs are JSON with the version of their form beside them.

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT UNIQUE,
    state TEXT NOT NULL,
    reason TEXT,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    labels TEXT NOT NULL,
    image_digest TEXT,
    owner TEXT,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    last_active_ms BIGINT NOT NULL,
    generation BIGINT NOT NULL
);
CREATE INDEX sandboxes_by_age ON sandboxes (created_ms, id);

-- The labels again, one per row, to filter by. Read from sandboxes.labels.
CREATE TABLE sandbox_labels (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    label_key TEXT NOT NULL,
    label_value TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, label_key)
);
CREATE INDEX sandbox_labels_by_label ON sandbox_labels (label_key, label_value);

CREATE TABLE execs (
    id TEXT PRIMARY KEY NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    idempotency_key TEXT,
    request_digest TEXT NOT NULL,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    state TEXT NOT NULL,
    pid BIGINT,
    exit TEXT,
    output_bytes BIGINT NOT NULL,
    started_by TEXT,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    UNIQUE (sandbox_id, idempotency_key)
);
CREATE INDEX execs_by_age ON execs (sandbox_id, created_ms, id);
CREATE INDEX execs_open ON execs (sandbox_id) WHERE state IN ('starting', 'running');

-- The last version given out per name, kept when versions are deleted: a version never means two things.
CREATE TABLE template_names (
    name TEXT PRIMARY KEY NOT NULL,
    last_version BIGINT NOT NULL
);
CREATE TABLE templates (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL REFERENCES template_names (name),
    version BIGINT NOT NULL,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    created_by TEXT,
    UNIQUE (name, version)
);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    hash BYTEA NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    last_used_ms BIGINT
);

CREATE TABLE registries (
    host TEXT PRIMARY KEY NOT NULL,
    username TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    updated_ms BIGINT NOT NULL
);
