# Made by sdk/generate from ../_async: change that.
"""The synchronous client. The other one is made from it by sdk/generate."""
