"""Compares the lines of a file with the published schema of OCSF: every line must be an event of its class."""

import json
import sys

from jsonschema import Draft202012Validator
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

schemas = OcsfJsonSchemaEmbedded(get_ocsf_schema("1.5.0"))
validators = {}
classes = {}
bad = 0
for number, line in enumerate(open(sys.argv[1]), 1):
    event = json.loads(line)
    uid = event["class_uid"]
    assert event["type_uid"] == uid * 100 + event["activity_id"], line
    if uid not in validators:
        validators[uid] = Draft202012Validator(schemas.get_class_schema(uid_to_name := schemas.lookup_class_name_from_uid(uid), []))
        classes[uid] = [uid_to_name, 0]
    classes[uid][1] += 1
    for error in validators[uid].iter_errors(event):
        bad += 1
        if bad <= 20:
            kind = event["unmapped"]["kind"]
            print(f"line {number} ({kind}): {'.'.join(map(str, error.path))}: {error.message[:300]}", file=sys.stderr)
for uid, (name, count) in sorted(classes.items()):
    print(uid, name, count)
missing = set(map(int, sys.argv[2:])) - set(classes)
if missing:
    print(f"no event of the classes {sorted(missing)}", file=sys.stderr)
sys.exit(1 if bad or missing else 0)
