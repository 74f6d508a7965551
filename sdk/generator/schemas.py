"""The OpenAPI document's schemas, as both generators need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
PREFIX = "#/components/schemas/"


@dataclass(frozen=True)
class Field:
    name: str
    schema: Schema
    required: bool
    doc: str

    @property
    def nullable(self) -> bool:
        return is_nullable(self.schema)


@dataclass(frozen=True)
class Variant:
    """One of several forms of an object, told apart by a constant in `type`."""

    name: str
    tag: str
    fields: list[Field]
    doc: str


def pascal(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in text.replace("-", "_").split("_"))


def is_nullable(schema: Schema) -> bool:
    kind = schema.get("type")
    if isinstance(kind, list):
        return "null" in kind
    return any(one.get("type") == "null" for one in schema.get("oneOf", []))


def without_null(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}
    if "oneOf" in schema:
        rest = [one for one in schema["oneOf"] if one.get("type") != "null"]
        return rest[0] if len(rest) == 1 else {**schema, "oneOf": rest}
    return schema


def reference(schema: Schema) -> str | None:
    target = schema.get("$ref")
    return target.removeprefix(PREFIX) if target else None


def fields(schema: Schema, document: Schema) -> list[Field]:
    """The fields of an object, those of the schemas it is put together from first."""
    found: list[Field] = []
    for part in schema.get("allOf", []):
        name = reference(part)
        found += fields(document["components"]["schemas"][name] if name else part, document)
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        doc = field.get("description") or without_null(field).get("description", "")
        found.append(Field(name, field, name in required, doc))
    return found


def variants(name: str, schema: Schema, document: Schema) -> list[Variant] | None:
    """The forms of a schema that is told apart by `type`; None for any other."""
    found: list[Variant] = []
    for one in schema.get("oneOf", []):
        tag = one.get("properties", {}).get("type", {}).get("enum", [])
        if len(tag) != 1:
            return None
        found.append(Variant(name + pascal(tag[0]), tag[0], fields(one, document), one.get("description", "")))
    return found or None


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"].removeprefix(PREFIX)} if "$ref" in value else set()
        return found.union(*(_references(one) for one in value.values())) if value else found
    if isinstance(value, list):
        return set().union(*(_references(one) for one in value)) if value else set()
    return set()


def reachable(document: Schema, roots: set[str]) -> list[str]:
    """The named schemas that the roots need, in alphabetical order."""
    schemas = document["components"]["schemas"]
    seen: set[str] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += sorted(_references(schemas[name]) - seen)
    return sorted(seen)


def of_requests(document: Schema) -> set[str]:
    bodies = [
        operation.get("requestBody", {})
        for item in document["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
    ]
    return _references(bodies) | {"AttachClientMessage"}


def of_answers(document: Schema) -> set[str]:
    answers = [
        operation.get("responses", {})
        for item in document["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
    ]
    events = {"AttachServerMessage", "WatchMessage", "BuildEvent", "OutputChunk", "ErrorBody", "UsageGroup"}
    return _references(answers) | events
