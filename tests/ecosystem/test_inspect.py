"""Inspect AI's own checks of a sandbox provider, all of them, on inspect-atoll as it is found by its entry point."""

import pytest
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from inspect_ai._util.entrypoints import ensure_entry_points


@pytest.fixture
async def sandbox_env():
    # Checks of permissions mean something only for who is not root.
    ensure_entry_points()
    provider = registry_find_sandboxenv("atoll")
    config = provider.config_deserialize({"user": "user", "workdir": "/home/user"})
    environments = await provider.sample_init("checks", config, {})
    yield environments["default"]
    await provider.sample_cleanup("checks", config, environments, False)
