-- What the server runs itself has names that no client can choose: they begin with 'server '. Execs that the server began for a
-- caller's sandbox were begun by no key; the first run of what a template starts belongs to the sandbox's owner, and its name is
-- made of an id that no client knew before.
UPDATE execs SET idempotency_key = 'server ' || idempotency_key
    WHERE (started_by IS NULL AND (idempotency_key LIKE 'atoll-service-%' OR idempotency_key LIKE 'atoll-agent-%'))
        OR idempotency_key = 'modal/first-command'
        OR EXISTS (SELECT 1 FROM services WHERE services.sandbox_id = execs.sandbox_id AND services.name = 'start'
            AND execs.idempotency_key = 'atoll-service-' || services.id || '-1');

-- A message that a schedule sent says which; a client's message has nothing but its text.
UPDATE agent_events SET client_key = 'server ' || client_key
    WHERE client_key LIKE 'atoll-schedule-%' AND data LIKE '%"schedule":"%';
