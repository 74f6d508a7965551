"""TypeScript types of the API: interfaces."""

from __future__ import annotations

import textwrap

import schemas
from schemas import Field, Schema

WIDTH = 116


def doc(text: str, indent: str) -> str:
    if not text:
        return ""
    text = " ".join(text.replace("*/", "* /").split())
    if len(indent) + len(text) + 7 <= WIDTH:
        return f"{indent}/** {text} */\n"
    lines = textwrap.wrap(text, WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False)
    return f"{indent}/**\n" + "".join(f"{indent} * {line}\n" for line in lines) + f"{indent} */\n"


def annotation(schema: Schema) -> str:
    inner = schemas.without_null(schema)
    suffix = " | null" if schemas.is_nullable(schema) else ""
    name = schemas.reference(inner)
    if name:
        return name + suffix
    if "oneOf" in inner:
        return " | ".join(annotation(one) for one in inner["oneOf"]) + suffix
    if "enum" in inner:
        return " | ".join(f'"{value}"' for value in inner["enum"]) + suffix
    kind = inner.get("type")
    if kind == "array":
        item = annotation(inner.get("items", {}))
        return (f"({item})[]" if " " in item else f"{item}[]") + suffix
    if kind == "object":
        values = inner.get("additionalProperties")
        if isinstance(values, dict):
            return f"Record<string, {annotation(values)}>" + suffix
        if "properties" in inner:
            inside = "; ".join(
                f"{name}{'' if name in inner.get('required', []) else '?'}: {annotation(one)}"
                for name, one in inner["properties"].items()
            )
            return f"{{ {inside} }}" + suffix
        return "Record<string, unknown>" + suffix
    simple = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}
    return simple.get(kind, "unknown") + suffix


def interface(name: str, text: str, fields: list[Field]) -> str:
    out = doc(text, "") + f"export interface {name} {{\n"
    for field in fields:
        mark = "" if field.required and not field.nullable else "?"
        out += doc(field.doc, "  ") + f"  {field.name}{mark}: {annotation(field.schema)};\n"
    return out + "}\n"


def named(name: str, schema: Schema, document: Schema) -> str:
    text = schema.get("description", "")
    if "enum" in schema:
        values = "".join(f'\n  | "{value}"' for value in schema["enum"])
        return doc(text, "") + f"export type {name} ={values};\n"
    if "oneOf" in schema:
        forms = schemas.variants(name, schema, document)
        if forms is None:
            return doc(text, "") + f"export type {name} = {annotation(schema)};\n"
        parts = "".join(interface(form.name, form.doc, form.fields) + "\n" for form in forms)
        return parts + doc(text, "") + f"export type {name} = {' | '.join(form.name for form in forms)};\n"
    return interface(name, text, schemas.fields(schema, document))


def all_types(document: Schema) -> str:
    names = schemas.reachable(document, schemas.of_requests(document) | schemas.of_answers(document))
    out = "// Made by sdk/generate from openapi/atoll.json.\n"
    for name in names:
        out += "\n" + named(name, document["components"]["schemas"][name], document)
    return out
