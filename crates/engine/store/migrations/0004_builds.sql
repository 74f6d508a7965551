-- Builds of templates, and the snapshots that keep what their steps made.

CREATE TABLE builds (
    id TEXT PRIMARY KEY NOT NULL,
    state TEXT NOT NULL,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    template_version BIGINT,
    failure TEXT,
    created_ms BIGINT NOT NULL,
    started_ms BIGINT,
    ended_ms BIGINT,
    created_by TEXT
);
CREATE INDEX builds_by_age ON builds (created_ms, id);

-- A row without its snapshot is worth nothing and does no harm: whoever finds it removes it.
CREATE TABLE build_cache (
    cache_key TEXT PRIMARY KEY NOT NULL,
    snapshot_id TEXT NOT NULL,
    step TEXT NOT NULL,
    stored_bytes BIGINT NOT NULL,
    made_in_ms BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    used_ms BIGINT NOT NULL
);
