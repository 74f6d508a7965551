-- Names for versions of templates. A tag points to one version, can move, and goes when its version does.
CREATE TABLE template_tags (
    name TEXT NOT NULL,
    tag TEXT NOT NULL,
    version BIGINT NOT NULL,
    set_ms BIGINT NOT NULL,
    PRIMARY KEY (name, tag),
    FOREIGN KEY (name, version) REFERENCES templates (name, version) ON DELETE CASCADE
);
