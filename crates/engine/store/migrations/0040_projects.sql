-- Projects: keys and what they make, apart from those of others. What is in none has NULL, as everything from before.
-- Names are kept as 'PROJECT/NAME' where they are unique, so that two projects may use the same.
CREATE TABLE projects (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL UNIQUE,
    -- How much it may have, and what its sandboxes are when nobody says: JSON.
    quota TEXT NOT NULL,
    defaults TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);

ALTER TABLE api_keys ADD COLUMN project TEXT REFERENCES projects (id);
-- What a key of a project may do. Its `scopes` are empty: a server that knows of no projects lets it do nothing.
ALTER TABLE api_keys ADD COLUMN project_scope TEXT;

ALTER TABLE sandboxes ADD COLUMN project TEXT REFERENCES projects (id);
-- The limits of a project's sandbox again, to add them up. Read from sandboxes.spec.
ALTER TABLE sandboxes ADD COLUMN cpu_millis BIGINT;
ALTER TABLE sandboxes ADD COLUMN memory_bytes BIGINT;
ALTER TABLE sandboxes ADD COLUMN disk_bytes BIGINT;
CREATE INDEX sandboxes_by_project ON sandboxes (project);

ALTER TABLE snapshots ADD COLUMN project TEXT REFERENCES projects (id);
CREATE INDEX snapshots_by_project ON snapshots (project);
ALTER TABLE volumes ADD COLUMN project TEXT REFERENCES projects (id);
-- The `owner` of such a secret is its project.
ALTER TABLE secrets ADD COLUMN project TEXT REFERENCES projects (id);
ALTER TABLE secret_uses ADD COLUMN project TEXT;
-- Outlives the project, as it does sandboxes and keys.
ALTER TABLE usage ADD COLUMN project TEXT;
