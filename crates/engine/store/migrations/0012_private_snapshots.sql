-- Snapshots of private sandboxes: as private as these, also when they are gone.
CREATE TABLE private_snapshots (
    snapshot_id TEXT PRIMARY KEY NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE
);
