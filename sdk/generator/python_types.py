"""Python types of the API: dataclasses for answers, typed dictionaries for requests."""

from __future__ import annotations

import keyword
import textwrap

import schemas
from schemas import Field, Schema

HEADER = '# Made by sdk/generate from openapi/atoll.json.\n"""{doc}"""\n\nfrom __future__ import annotations\n'
WIDTH = 116


def doc(text: str, indent: str) -> str:
    if not text:
        return ""
    text = " ".join(text.replace("\\", "\\\\").replace('"""', "'''").split())
    text = text.replace("[`CreateSandbox::", "[`")
    if text.endswith('"'):
        text += " "
    if len(indent) + len(text) + 6 <= WIDTH:
        return f'{indent}"""{text}"""\n'
    lines = textwrap.wrap(text, WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False)
    return f'{indent}"""' + f"\n{indent}".join(lines) + f'\n{indent}"""\n'


def literal(values: list[str]) -> str:
    return "Literal[" + ", ".join(f'"{value}"' for value in values) + "]"


def annotation(schema: Schema) -> str:
    schema_ = schemas.without_null(schema)
    suffix = " | None" if schemas.is_nullable(schema) else ""
    name = schemas.reference(schema_)
    if name:
        return name + suffix
    if "oneOf" in schema_:
        return " | ".join(annotation(one) for one in schema_["oneOf"]) + suffix
    if "enum" in schema_:
        return literal(schema_["enum"]) + suffix
    kind = schema_.get("type")
    if kind == "array":
        return f"list[{annotation(schema_.get('items', {}))}]" + suffix
    if kind == "object":
        values = schema_.get("additionalProperties")
        if isinstance(values, dict):
            return f"dict[str, {annotation(values)}]" + suffix
        return "dict[str, Any]" + suffix
    simple = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
    return simple.get(kind, "Any") + suffix


def alias(name: str, schema: Schema) -> str | None:
    """A schema that is no object of its own."""
    if "enum" in schema:
        values = "".join(f'    "{value}",\n' for value in schema["enum"])
        return f"{name} = Literal[\n{values}]\n" + doc(schema.get("description", ""), "")
    return None


# Answers


def default(field: Field) -> str:
    """What an answer means that lacks an optional field: an older server's, or one that leaves out what is empty."""
    kind = field.schema.get("type")
    if field.nullable:
        return "None"
    return {"array": "[]", "object": "{}", "string": '""', "integer": "0", "boolean": "False"}.get(kind, "None")


def snake(name: str) -> str:
    """As functions are written."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).strip("_")


def decoded(schema: Schema, value: str, records: dict[str, str]) -> str:
    """An expression that makes what `annotation` says out of JSON."""
    inner = schemas.without_null(schema)
    name = schemas.reference(inner)
    if name:
        return f"{records[name]}({value})" if name in records else value
    if inner.get("type") == "array":
        item = decoded(inner["items"], "one", records)
        return value if item == "one" else f"[{item} for one in {value}]"
    values = inner.get("additionalProperties")
    if inner.get("type") == "object" and isinstance(values, dict):
        item = decoded(values, "one", records)
        return value if item == "one" else f"{{key: {item} for key, one in {value}.items()}}"
    return value


def python_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def field_line(field: Field) -> str:
    kind = annotation(field.schema)
    if not field.required and default(field) == "None" and not field.nullable:
        kind += " | None"
    return f"    {python_name(field.name)}: {kind}\n" + doc(field.doc, "    ")


def field_value(field: Field, records: dict[str, str]) -> str:
    value = f'o["{field.name}"]' if field.required else f'o.get("{field.name}")'
    made = decoded(field.schema, value, records)
    empty = default(field)
    if made == value:
        return value if field.required or empty == "None" else f'o.get("{field.name}", {empty})'
    if field.required and not field.nullable:
        return made
    if empty == "None":
        return decoded(field.schema, "v", records) + f' if (v := o.get("{field.name}")) is not None else None'
    return decoded(field.schema, f'o.get("{field.name}", {empty})', records)


def record(name: str, text: str, fields: list[Field], records: dict[str, str]) -> str:
    out = f"@dataclass(frozen=True, slots=True)\nclass {name}:\n" + doc(text or name, "    ") + "\n"
    out += "".join(field_line(field) for field in fields)
    out += "\n    @classmethod\n    def from_json(cls, o: Any) -> " + name + ":\n"
    out += '        """Reads what the server sent; fields it does not know are left out."""\n'
    out += "        return cls(\n"
    out += "".join(f"            {field_value(field, records)},\n" for field in fields)
    return out + "        )\n"


def answer(name: str, schema: Schema, document: Schema, records: dict[str, str]) -> str:
    forms = schemas.variants(name, schema, document)
    if forms is None:
        return record(name, schema.get("description", ""), schemas.fields(schema, document), records)
    out = ""
    for form in forms:
        out += record(form.name, form.doc, form.fields, records) + "\n\n"
    out += f"{name} = Union[{', '.join(form.name for form in forms)}]\n" + doc(schema.get("description", ""), "")
    out += f"\n\ndef {snake(name)}_from_json(o: Any) -> {name}:\n"
    out += '    """Reads what the server sent."""\n'
    for form in forms[:-1]:
        out += f'    if o["type"] == "{form.tag}":\n        return {form.name}.from_json(o)\n'
    return out + f"    return {forms[-1].name}.from_json(o)\n"


def answers(document: Schema) -> str:
    all_schemas = document["components"]["schemas"]
    names = schemas.reachable(document, schemas.of_answers(document))
    # How each is read.
    records: dict[str, str] = {}
    for name in names:
        if "properties" in all_schemas[name] or "allOf" in all_schemas[name]:
            records[name] = f"{name}.from_json"
        elif schemas.variants(name, all_schemas[name], document):
            records[name] = f"{snake(name)}_from_json"
    out = HEADER.format(doc="What the server answers, as the API's document says.")
    out += "\nfrom dataclasses import dataclass\nfrom typing import Any, Literal, Union\n"
    for name in names:
        if text := alias(name, all_schemas[name]):
            out += "\n" + text
    for name in names:
        if name not in records and alias(name, all_schemas[name]) is None:
            out += f"\n{name} = {annotation(all_schemas[name])}\n"
    for name in names:
        if name in records:
            out += "\n\n" + answer(name, all_schemas[name], document, records)
    return out


# Requests


def by_words(name: str, fields: list[Field]) -> str:
    """Fields that no class body can have: their names are words of the language."""
    lines = "".join(f'        "{field.name}": "{annotation(field.schema)}",\n' for field in fields)
    total = "" if all(field.required for field in fields) else "    total=False,\n"
    return f'{name} = TypedDict(\n    "{name}",\n    {{\n{lines}    }},\n{total})\n'


def typed_dict(name: str, schema: Schema, fields: list[Field]) -> str:
    words = [field for field in fields if keyword.iskeyword(field.name)]
    required = [field for field in fields if field.required and field not in words]
    optional = [field for field in fields if not field.required and field not in words]
    if words and not required and not optional:
        return by_words(name, words) + doc(schema.get("description", ""), "")
    def body(some: list[Field]) -> str:
        return "".join(
            f"    {field.name}: {annotation(field.schema)}\n" + doc(field.doc, "    ") for field in some
        ) or "    pass\n"
    text = doc(schema.get("description", ""), "    ")
    out, bases = "", []
    if words:
        out += by_words(f"_{name}Words", words) + "\n\n"
        bases.append(f"_{name}Words")
    if required and optional:
        out += f"class _{name}Required(TypedDict):\n{body(required)}\n\n"
        bases.append(f"_{name}Required")
    heads = ", ".join(bases or ["TypedDict"]) + (", total=False" if not required or optional else "")
    return out + f"class {name}({heads}):\n{text}\n{body(optional if required and optional else required or optional)}"


def request(name: str, schema: Schema, document: Schema) -> str:
    if "oneOf" not in schema:
        return typed_dict(name, schema, schemas.fields(schema, document))
    out, parts = "", []
    for one in schema["oneOf"]:
        fields = schemas.fields(one, document)
        if fields:
            tag = one["properties"].get("type", {}).get("enum")
            part = name + schemas.pascal(tag[0] if tag else fields[0].name)
            out += typed_dict(part, one, fields) + "\n\n"
            parts.append(part)
        else:
            parts.append(annotation(one))
    return out + f"{name} = Union[{', '.join(parts)}]\n" + doc(schema.get("description", ""), "")


def requests(document: Schema) -> str:
    all_schemas = document["components"]["schemas"]
    names = schemas.reachable(document, schemas.of_requests(document))
    out = HEADER.format(doc="What requests carry, as the API's document says.")
    out += "\nfrom typing import Any, Literal, TypedDict, Union\n"
    for name in names:
        if text := alias(name, all_schemas[name]):
            out += "\n" + text
    # Unions name their parts while the module is read: simple ones first.
    rest = [name for name in names if alias(name, all_schemas[name]) is None]
    unions = [name for name in rest if "oneOf" in all_schemas[name]]
    for name in [name for name in unions if name == "CommandText"] + [
        name for name in rest if name != "CommandText"
    ]:
        out += "\n\n" + request(name, all_schemas[name], document)
    return out if "Any]" in out else out.replace("import Any, Literal", "import Literal")
