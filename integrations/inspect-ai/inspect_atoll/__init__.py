"""Atoll sandboxes for Inspect AI. Importing this registers the sandbox type `atoll`."""

from inspect_atoll.config import AtollSandboxConfig
from inspect_atoll.environment import AtollSandboxEnvironment

__all__ = ["AtollSandboxConfig", "AtollSandboxEnvironment"]
