"""Atoll sandboxes for mini-SWE-agent: `environment_class: mini_swe_agent_atoll.AtollEnvironment`."""

from mini_swe_agent_atoll.environment import AtollEnvironment, AtollEnvironmentConfig

__all__ = ["AtollEnvironment", "AtollEnvironmentConfig"]
