"""Reads the generated client packages as a contract: their requests, and the fields that each answer must have."""

import datetime
import enum
import importlib
import inspect
import json
import pkgutil
import re
import types
import typing
import urllib.parse

import pydantic
from conftest import raw

ASKS = re.compile(r"def _(\w+)_serialize\(.*?method='(\w+)',\s+resource_path='([^']+)'", re.S)
ANSWER = re.compile(r"'(\d+)': (?:\"([^\"]+)\"|None),")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# The member of generated enumerations that stands for values that the client does not know.
UNKNOWN = "unknown_default_open_api"


def operations(package):
    """Every operation of a generated package, `METHOD /path`, with the type of its answer by status."""
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        source = inspect.getsource(importlib.import_module(f"{package.__name__}.{module.name}"))
        for name, method, path in ASKS.findall(source):
            body = source[source.index(f"    def {name}(") :]
            answers = body[body.index("_response_types_map") : body.index("}", body.index("_response_types_map"))]
            found[f"{method} {path}"] = {int(status): kind or None for status, kind in ANSWER.findall(answers)}
    return found


def faults(value, kind, where):
    """Yields why a JSON value is not of a type of the client. This is strict; the client's own parser is lenient."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from faults(value, args[0], where)
    elif origin in (typing.Union, types.UnionType):
        each = [list(faults(value, arg, where)) for arg in args]
        if all(each):
            # Of the alternatives, report the one with the most faults.
            yield from max(each, key=len)
    elif kind in (typing.Any, object):
        pass
    elif kind in (None, type(None)):
        if value is not None:
            yield f"{where}: {value!r} is not null"
    elif (origin or kind) is list:
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from faults(item, args[0], f"{where}[{number}]")
        else:
            yield f"{where}: {value!r} is no list"
    elif (origin or kind) is dict:
        if isinstance(value, dict):
            for name, item in value.items():
                yield from faults(item, args[1] if args else typing.Any, f"{where}.{name}")
        else:
            yield f"{where}: {value!r} is no object"
    elif issubclass(kind, pydantic.BaseModel):
        yield from of_model(value, kind, where)
    elif issubclass(kind, enum.Enum):
        if value == UNKNOWN or value not in {member.value for member in kind}:
            yield f"{where}: {value!r} is no {kind.__name__}"
    elif issubclass(kind, datetime.datetime):
        if not isinstance(value, str) or not TIME.fullmatch(value):
            yield f"{where}: {value!r} is no time"
    elif isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        yield f"{where}: {value!r} is no {kind.__name__}"


def of_model(value, model, where):
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is no {model.__name__}"
        return
    found = []
    for name, field in model.model_fields.items():
        sent = field.serialization_alias or field.alias or name
        if sent in value:
            found += faults(value[sent], field.annotation, f"{where}.{sent}")
        elif field.is_required():
            found.append(f"{where}: {model.__name__} needs '{sent}', which is missing")
    if not found:
        # The model's own checks find faults that the types of the fields do not show.
        try:
            model.from_dict(value)
        except ValueError as error:
            found.append(f"{where}: {error}")
    yield from found


class Client:
    """Sends the requests of a package, and notes the answers that its models would reject."""

    def __init__(self, package, root):
        self.operations = operations(importlib.import_module(f"{package}.api"))
        self.models = importlib.import_module(f"{package}.models")
        self.root, self.asked, self.faults = root, set(), []

    def __call__(self, operation, *names, body=None, headers=None, wants=range(200, 300), **query):
        """Calls one operation; `names` fill the parameters of its path. Returns the answer."""
        assert operation in self.operations, f"the client does not ask {operation} any more"
        self.asked.add(operation)
        method, path = operation.split()
        names = iter(names)
        url = re.sub(r"\{[^}]*\}", lambda _: urllib.parse.quote(str(next(names)), safe=""), path)
        url += f"?{urllib.parse.urlencode(query)}" if query else ""
        status, told, text = raw(method, url, body, headers=headers, root=self.root)
        assert status in wants, f"{operation}: {status} {text[:300]}"
        answers = self.operations[operation]
        if status not in answers:
            self.faults.append(f"{operation}: {status}, and the client knows {sorted(answers)}")
            return None
        kind = answers[status]
        # Files are not JSON. The SDK itself parses multipart answers, so their generated type does not matter.
        if kind is None or kind == "bytes" or told.get_content_maintype() == "multipart":
            return text
        named = {one: getattr(self.models, one, None) or getattr(typing, one) for one in re.findall(r"\b[A-Z]\w+", kind)}
        kind = eval(kind, named)
        answer = json.loads(text)
        self.faults += faults(answer, kind, f"{operation} {status}")
        return answer
