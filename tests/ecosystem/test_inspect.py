"""All of Inspect AI's own checks of a sandbox provider, on inspect-atoll, which it finds by its entry point."""

import pytest
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from inspect_ai._util.entrypoints import ensure_entry_points


@pytest.fixture
async def sandbox_env():
    # The sandbox's user is not root: for root, checks of permissions mean nothing.
    ensure_entry_points()
    provider = registry_find_sandboxenv("atoll")
    config = provider.config_deserialize({"user": "user", "workdir": "/home/user"})
    environments = await provider.sample_init("checks", config, {})
    yield environments["default"]
    await provider.sample_cleanup("checks", config, environments, False)
