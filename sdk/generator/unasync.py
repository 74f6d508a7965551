"""Makes the synchronous half of the Python SDK from the asynchronous one."""

import re

# What the halves do in different ways stands in this file of each.
HAND_WRITTEN = "_io.py"

HEADER = "# Made by sdk/generate from ../_async: change that.\n"

REPLACEMENTS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|iter_bytes|iter_lines|read|next)\b", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b_async\b", "_sync"),
    (r"\basynchronous\b", "synchronous"),
]


def without_async(source: str) -> str:
    for pattern, replacement in REPLACEMENTS:
        source = re.sub(pattern, replacement, source)
    # What was there in both forms is there twice now.
    source = re.sub(r"(?m)^from collections\.abc import (.*)$", _once, source)
    return HEADER + source.replace("Iterable[bytes] | Iterable[bytes]", "Iterable[bytes]")


def _once(match: re.Match[str]) -> str:
    return "from collections.abc import " + ", ".join(sorted(set(match[1].split(", "))))
