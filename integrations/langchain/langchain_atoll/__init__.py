"""Atoll sandboxes for Deep Agents."""

from langchain_atoll.sandbox import AtollSandbox

__all__ = ["AtollSandbox"]
