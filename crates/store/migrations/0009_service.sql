-- What APIs keep beside a sandbox for themselves: JSON of texts. Not filtered by, not interpreted.
ALTER TABLE sandboxes ADD COLUMN annotations TEXT NOT NULL DEFAULT '{}';
