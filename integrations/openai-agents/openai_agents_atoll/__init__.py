"""Atoll sandboxes for the OpenAI Agents SDK."""

from openai_agents_atoll.client import AtollSandboxClient, AtollSandboxClientOptions
from openai_agents_atoll.session import AtollSandboxSession, AtollSandboxSessionState

__all__ = ["AtollSandboxClient", "AtollSandboxClientOptions", "AtollSandboxSession", "AtollSandboxSessionState"]
