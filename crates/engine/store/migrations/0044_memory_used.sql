-- 1 from before a machine that is on disk with its memory, and copied, goes on until it is recorded what became of that: its copy
-- counts for its disk alone.
ALTER TABLE sandboxes ADD COLUMN memory_used BIGINT NOT NULL DEFAULT 0;
