"""Reads code out of the documentation, so that tests run it as it stands there."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def recipes(page, heading=None):
    """The Python blocks of a page, or of the section below one of its headings."""
    text = (ROOT / page).read_text()
    if heading is not None:
        [text] = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.S | re.M)
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
