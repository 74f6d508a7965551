-- What of sandboxes lies in the object store, so that another node can go on with them. Only nodes write here.
CREATE TABLE kept (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    -- The upload that is under way: written before its first object, so that nobody takes them for nobody's.
    upload TEXT,
    -- The upload that made the copy which is whole, the digest of its index, and when it was whole.
    copy TEXT,
    digest TEXT,
    bytes BIGINT NOT NULL,
    copied_ms BIGINT,
    -- Why it stays on its node although that is drained.
    stays TEXT
);

-- The directory of the object store in which the nodes of this database keep them: another database's nodes have another.
CREATE TABLE kept_place (
    one BIGINT PRIMARY KEY NOT NULL,
    place TEXT NOT NULL
);

-- Sandboxes that came to a node, which has not taken them up yet; `wake` for those that ran before.
CREATE TABLE arrivals (
    sandbox_id TEXT PRIMARY KEY NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    wake BIGINT NOT NULL
);

-- Set while a sandbox is put to disk and everything that it needs to be woken is in the object store, too. Whatever wakes it
-- takes this away in the same statement.
ALTER TABLE sandboxes ADD COLUMN kept_ms BIGINT;
