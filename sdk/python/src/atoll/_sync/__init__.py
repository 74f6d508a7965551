# Made by sdk/generate from ../_async: change that.
"""The synchronous client. The script sdk/generate makes `_sync` from `_sync`."""
