-- What lets somebody without an API key reach a port or file. An empty hash: public, no token.
CREATE TABLE accesses (
    id TEXT PRIMARY KEY NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    target TEXT NOT NULL,
    name TEXT,
    hash BYTEA NOT NULL,
    created_ms BIGINT NOT NULL,
    created_by TEXT,
    expires_ms BIGINT
);
CREATE INDEX accesses_by_sandbox ON accesses (sandbox_id);

-- SSH public keys, each for an API key.
CREATE TABLE ssh_keys (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    public_key TEXT NOT NULL,
    fingerprint TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT
);
