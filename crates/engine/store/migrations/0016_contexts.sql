-- Contexts of sandboxes' code interpreters. What runs in them are execs.
CREATE TABLE contexts (
    id TEXT PRIMARY KEY NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    name TEXT,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    UNIQUE (sandbox_id, name)
);
