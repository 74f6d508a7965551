"""The version of this package. It is the same as in `pyproject.toml`."""

VERSION = "0.1.0"
