-- Images that every node can have: their layers lie in the object store. Only nodes with one write here.

-- An object that is whole: its name is made of these two. By the digest of the unpacked archive.
CREATE TABLE shared_layers (
    diff_id TEXT PRIMARY KEY NOT NULL,
    upload TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    -- 1: it was not there, or not what it should be, when a node looked: whoever has the layer sends it again.
    is_doubted BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE shared_images (
    digest TEXT PRIMARY KEY NOT NULL,
    -- What it consists of, and how it is run: JSON.
    document TEXT NOT NULL,
    shared_ms BIGINT NOT NULL
);

-- That a layer is there as long as an image needs it, the database sees to.
CREATE TABLE shared_image_layers (
    digest TEXT NOT NULL REFERENCES shared_images (digest) ON DELETE CASCADE,
    diff_id TEXT NOT NULL REFERENCES shared_layers (diff_id),
    PRIMARY KEY (digest, diff_id)
);
CREATE INDEX shared_image_layers_by_layer ON shared_image_layers (diff_id);

CREATE TABLE shared_image_names (
    name TEXT PRIMARY KEY NOT NULL,
    -- Absent: the name was taken away. Remembered for a while, for who was away and would give it again.
    digest TEXT REFERENCES shared_images (digest) ON DELETE CASCADE,
    -- When somebody gave it, or took it away.
    said_ms BIGINT NOT NULL
);
CREATE INDEX shared_image_names_by_image ON shared_image_names (digest);

-- The disks on which templates stand, in the object store as snapshots are exported.
CREATE TABLE shared_snapshots (
    snapshot_id TEXT PRIMARY KEY NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    upload TEXT NOT NULL,
    digest TEXT NOT NULL,
    bytes BIGINT NOT NULL
);

-- What each node calls the objects that it sends since its start: written down before the first one, so that nobody takes them
-- for nobody's.
CREATE TABLE image_uploads (
    node TEXT PRIMARY KEY NOT NULL,
    upload TEXT NOT NULL
);
