-- What a tag has meant: the newest assignment is what it means now. Those of a tag are numbered.
CREATE TABLE template_tag_assignments (
    name TEXT NOT NULL,
    tag TEXT NOT NULL,
    number BIGINT NOT NULL,
    version BIGINT NOT NULL,
    set_ms BIGINT NOT NULL,
    PRIMARY KEY (name, tag, number),
    FOREIGN KEY (name, version) REFERENCES templates (name, version) ON DELETE CASCADE
);
INSERT INTO template_tag_assignments (name, tag, number, version, set_ms)
    SELECT name, tag, 1, version, set_ms FROM template_tags;
