"""Checks that the messages of the dialect match the installed client's: names, numbers and types of fields."""

import pathlib
import re

import pytest
from modal_proto import api_pb2, task_command_router_pb2

WIRE = pathlib.Path(__file__).parents[2] / "crates/dialects/modal/src/wire"
# Types of protobuf by their numbers in descriptors; enumerations are int32 here.
TYPES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes", 13: "uint32", 14: "int32"}
MESSAGE = re.compile(r"^    (\w+) \{\n(.*?)^    \}", re.M | re.S)
FIELD = re.compile(r'#\[prost\((\w+)(?: = "([^"]*)")?(?:, (optional|repeated))?, tag = "(\d+)"\)\]\s*pub\(crate\) (?:r#)?(\w+):')


def known():
    """The client's messages, by the names that the server uses."""
    found = {}

    def enter(message, prefix=""):
        found[prefix + message.name] = message
        for nested in message.nested_types:
            enter(nested, prefix + message.name)

    for module in (api_pb2, task_command_router_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            enter(message)
    return found


def served():
    for path in sorted(WIRE.glob("*.rs")):
        for name, body in MESSAGE.findall(path.read_text()):
            yield name, FIELD.findall(body)


def test_there_are_messages():
    assert sum(len(fields) for _, fields in served()) > 250


def common():
    """The messages that this version of the client has."""
    return [(name, fields) for name, fields in served() if name in known()]


@pytest.mark.parametrize("name,fields", common(), ids=[name for name, _ in common()])
def test_fields(name, fields):
    message = known()[name]
    by_name = {field.name: field for field in message.fields}
    for kind, value, label, number, field in fields:
        theirs = by_name.get(field)
        if theirs is None:
            continue
        assert theirs.number == int(number), field
        if kind == "btree_map":
            entry = theirs.message_type.fields
            assert value == ", ".join(TYPES[part.type] for part in entry)
        elif theirs.message_type:
            assert kind == "message", field
        else:
            assert kind == TYPES[theirs.type], field
