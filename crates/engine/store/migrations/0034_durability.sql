-- The moment that the copy of a sandbox is of, while it is to be brought back from it when its node dies.
ALTER TABLE kept ADD COLUMN taken_ms BIGINT;
-- It was brought back from a copy of this moment, at that moment: what was done between is lost.
ALTER TABLE sandboxes ADD COLUMN checkpoint_ms BIGINT;
ALTER TABLE sandboxes ADD COLUMN restored_ms BIGINT;
