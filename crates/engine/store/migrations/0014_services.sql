-- Services: commands of a sandbox that should always run.
CREATE TABLE services (
    id TEXT PRIMARY KEY NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    -- Its runs and how they ended: JSON, not filtered by.
    status TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    UNIQUE (sandbox_id, name)
);
