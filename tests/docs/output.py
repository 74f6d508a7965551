"""Compares output with what a page shows: ids, times, sizes and other numbers that differ from run to run match any."""

import re

ID = re.compile(r"[a-z]{2}0[0-9a-z]+…?")
UNIT = "(?:B|KiB|MiB|GiB|TiB)"
TOKENS = [
    (ID, r"[a-z]{2}0[0-9a-z]+"),
    (re.compile(r"\d+(\.\d+)?(ms|s|m|h|d)"), r"\d+(\.\d+)?(ms|s|m|h|d)( \d+s)?"),
    (re.compile(r"\d+(\.\d+)?%"), r"\d+(\.\d+)?%"),
    (re.compile(r"\d+\.\d+"), r"\d+(\.\d+)?"),
    (re.compile(r"\d{4,},?"), r"\d+,?"),
    (re.compile(UNIT), UNIT),
]


def token(text):
    for shape, pattern in TOKENS:
        if shape.fullmatch(text):
            return pattern
    return r"\S*".join(re.escape(part) for part in text.split("…"))


def line(text):
    """A pattern for one line; columns may be wider or narrower than on the page."""
    parts = text.split()
    patterns = [token(part) for part in parts]
    for at, part in enumerate(parts[1:]):
        # '5 MiB': any number before the unit matches, too.
        if re.fullmatch(UNIT, part) and re.fullmatch(r"[\d.]+", parts[at]):
            patterns[at] = r"[\d.]+"
    return re.compile(r"\s*" + r"\s+".join(patterns) + r"\s*")


def matches(shown, actual):
    """Whether all lines of `actual` match the lines `shown`; a line with nothing but … stands for any lines."""
    if all(not text for text in shown):
        return all(not text.strip() for text in actual)
    if shown[0].strip() == "…":
        return any(matches(shown[1:], actual[skip:]) for skip in range(len(actual) + 1))
    return bool(actual) and bool(line(shown[0]).fullmatch(actual[0])) and matches(shown[1:], actual[1:])
