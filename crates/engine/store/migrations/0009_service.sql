-- What APIs keep beside a sandbox for themselves: JSON of texts. Not filtered by, not interpreted.
ALTER TABLE sandboxes ADD COLUMN annotations TEXT NOT NULL DEFAULT '{}';
-- What people call a registry, where an API has names for them.
ALTER TABLE registries ADD COLUMN name TEXT;
