-- How it stands with a certificate of a server of ACME: who orders it, what was tried, what challenges are answered with. The
-- certificate itself is a sealed value. `version` is raised by each change.
CREATE TABLE acme (
    name TEXT PRIMARY KEY NOT NULL,
    version BIGINT NOT NULL,
    state TEXT NOT NULL
);
