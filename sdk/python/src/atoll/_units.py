"""Sizes and durations as people write them."""

from __future__ import annotations

import re
from typing import Union

Size = Union[int, str]
"""Bytes, or text such as `512MiB`, `2G`, `1.5GB`: `K`, `M`, `G`, `T` are powers of 1024, as are `KiB`…; `kB`, `MB`… of 1000."""

Duration = Union[int, float, str]
"""Seconds, or text such as `90s`, `1h30m`, `500ms`, `2d`."""

_SIZES = {
    "": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
    "t": 1 << 40, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def size_bytes(size: Size) -> int:
    """The size in bytes."""
    if isinstance(size, int):
        return size
    match = _PART.fullmatch(size.strip())
    if match is None or match[2].lower() not in _SIZES:
        raise ValueError(f"{size!r} is not a size: write it like 512MiB, 2G or 1.5GB")
    return round(float(match[1]) * _SIZES[match[2].lower()])


def duration_ms(duration: Duration) -> int:
    """The duration in milliseconds."""
    if isinstance(duration, (int, float)):
        return round(duration * 1000)
    total, at, text = 0.0, 0, duration.strip()
    while at < len(text) or not text:
        match = _PART.match(text, at)
        if match is None or match[2] not in _DURATIONS:
            raise ValueError(f"{duration!r} is not a duration: write it like 90s, 1h30m or 500ms, or seconds as a number")
        total += float(match[1]) * _DURATIONS[match[2]]
        at = match.end()
    return round(total)


def maybe_ms(duration: Duration | None) -> int | None:
    """The duration in milliseconds, or None when there is no duration."""
    return None if duration is None else duration_ms(duration)
