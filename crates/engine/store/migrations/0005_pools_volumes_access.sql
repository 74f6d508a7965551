-- Warm pools that were set up by name; templates carry their own in their spec.
CREATE TABLE pools (
    name TEXT PRIMARY KEY NOT NULL,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);

CREATE TABLE volumes (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    source TEXT,
    read_only BIGINT NOT NULL,
    owner TEXT,
    created_ms BIGINT NOT NULL
);

-- Who may see a sandbox besides its owner; the server's default where there is no row.
CREATE TABLE sandbox_access (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    visibility TEXT NOT NULL
);
CREATE TABLE sandbox_grants (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key_id TEXT NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    role TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, key_id)
);
CREATE TABLE sandbox_leases (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    taken_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);
