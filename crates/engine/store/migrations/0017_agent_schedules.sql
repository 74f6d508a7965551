-- What agents are sent by time.
CREATE TABLE agent_schedules (
    id TEXT PRIMARY KEY NOT NULL,
    agent_id TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    spec TEXT NOT NULL,
    spec_version BIGINT NOT NULL,
    -- When the next message is due, and how the last one fared: JSON, not filtered by.
    status TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);
