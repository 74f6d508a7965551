-- The key with which its owner asked for a sandbox: a retry finds it, also after a restart.
ALTER TABLE sandboxes ADD COLUMN request_key TEXT;
ALTER TABLE sandboxes ADD COLUMN request_digest TEXT;
CREATE UNIQUE INDEX sandboxes_by_request ON sandboxes (owner, request_key);
