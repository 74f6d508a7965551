-- People who log in at an issuer of identities are keys without a secret, and so are their logins.
-- Who a person is, as the issuer said last.
ALTER TABLE api_keys ADD COLUMN person TEXT;
-- Whose login it is, where it counts, and by which exchange it was opened: that opens no second one.
ALTER TABLE api_keys ADD COLUMN login_of TEXT REFERENCES api_keys (id) ON DELETE CASCADE;
ALTER TABLE api_keys ADD COLUMN login_by TEXT;
ALTER TABLE api_keys ADD COLUMN login_exchange BYTEA;
CREATE UNIQUE INDEX api_keys_login_exchange ON api_keys (login_exchange);
CREATE INDEX api_keys_login_of ON api_keys (login_of);
