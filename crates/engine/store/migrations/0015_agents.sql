-- Agents that live in sandboxes, their sessions, and what was said in them.
CREATE TABLE agents (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL UNIQUE,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE TABLE agent_sessions (
    id TEXT PRIMARY KEY NOT NULL,
    agent_id TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    thread TEXT,
    -- Where the conversation with the process is: JSON, not filtered by.
    status TEXT NOT NULL,
    -- Number of the last event.
    events BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    UNIQUE (agent_id, thread)
);
CREATE TABLE agent_events (
    session_id TEXT NOT NULL REFERENCES agent_sessions (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    kind TEXT NOT NULL,
    -- The same message sent again has the same.
    client_key TEXT,
    data TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (session_id, number),
    UNIQUE (session_id, client_key)
);
