-- Servers that share a PostgreSQL database. SQLite belongs to one server, which is no node: there these stay empty.
CREATE TABLE nodes (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL,
    version TEXT NOT NULL,
    facts TEXT NOT NULL,
    -- Raised by each start of the node, and by who takes over what it had: whoever has an older one writes nothing.
    epoch BIGINT NOT NULL,
    -- Raised by the node as long as it lives. Others look whether it changes, each by a clock of its own.
    beats BIGINT NOT NULL,
    lease_ms BIGINT NOT NULL,
    is_alive BIGINT NOT NULL,
    is_draining BIGINT NOT NULL,
    load TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL
);
-- Makes the epoch a part of the key: PostgreSQL then lets a node beat while others look at its epoch and hold on to it.
CREATE UNIQUE INDEX nodes_by_epoch ON nodes (id, epoch);

-- Where something is. NULL where there are no nodes.
ALTER TABLE sandboxes ADD COLUMN node TEXT;
ALTER TABLE snapshots ADD COLUMN node TEXT;
ALTER TABLE volumes ADD COLUMN node TEXT;
ALTER TABLE builds ADD COLUMN node TEXT;
CREATE INDEX sandboxes_by_node ON sandboxes (node);

-- How often something changed that servers keep in memory. Counted by triggers, see the module membership.
CREATE TABLE changes (
    what TEXT PRIMARY KEY NOT NULL,
    number BIGINT NOT NULL
);
