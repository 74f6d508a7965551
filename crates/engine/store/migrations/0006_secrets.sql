-- Secrets: names, scopes, and sealed values by version. `owner` is empty for a secret of the installation, or
-- the id of the one sandbox that it is for; such a secret goes with its sandbox.
CREATE TABLE secrets (
    id TEXT PRIMARY KEY NOT NULL,
    owner TEXT NOT NULL,
    sandbox_id TEXT REFERENCES sandboxes (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    scope TEXT NOT NULL,
    note TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    created_by TEXT,
    UNIQUE (owner, name)
);
CREATE INDEX secrets_by_sandbox ON secrets (sandbox_id) WHERE sandbox_id IS NOT NULL;

CREATE TABLE secret_versions (
    secret_id TEXT NOT NULL REFERENCES secrets (id) ON DELETE CASCADE,
    version BIGINT NOT NULL,
    sealed BYTEA NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (secret_id, version)
);

-- What the server itself keeps sealed, such as the key of the certificate authority, with what may be seen of it.
CREATE TABLE sealed_values (
    name TEXT PRIMARY KEY NOT NULL,
    visible TEXT NOT NULL,
    sealed BYTEA NOT NULL,
    created_ms BIGINT NOT NULL
);

-- Each use of a secret, kept when secret and sandbox are gone.
CREATE TABLE secret_uses (
    id TEXT PRIMARY KEY NOT NULL,
    at_ms BIGINT NOT NULL,
    secret TEXT NOT NULL,
    version BIGINT NOT NULL,
    sandbox_id TEXT NOT NULL,
    host TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    rule TEXT NOT NULL
);
CREATE INDEX secret_uses_by_age ON secret_uses (at_ms, id);
CREATE INDEX secret_uses_by_secret ON secret_uses (secret, at_ms);
