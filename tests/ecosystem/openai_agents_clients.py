"""The sandbox clients that the OpenAI Agents SDK ships for vendors whose protocol Atoll speaks, and Atoll's own.

The tests give no client the server's address: each finds it in the environment, as it does for its users.
"""

import importlib

CLIENTS = ("e2b", "daytona", "runloop", "modal", "atoll")

# Module, prefix of class names, directory of the workspace (Runloop's client expects this one), options of the client.
_MADE = {
    "e2b": ("agents.extensions.sandbox.e2b", "E2B", "/home/user/workspace", {"sandbox_type": "e2b"}),
    "daytona": ("agents.extensions.sandbox.daytona", "Daytona", "/home/user/workspace", {}),
    "runloop": ("agents.extensions.sandbox.runloop", "Runloop", "/home/user", {}),
    "modal": ("agents.extensions.sandbox.modal", "Modal", "/home/user/workspace", {"app_name": "openai-agents"}),
    "atoll": ("openai_agents_atoll", "Atoll", "/workspace", {}),
}


def client_of(name):
    """Returns a client, and the options with which it makes sandboxes."""
    module, prefix, _, options = _MADE[name]
    there = importlib.import_module(module)
    client = getattr(there, f"{prefix}SandboxClient")(**_image(name, there))
    return client, getattr(there, f"{prefix}SandboxClientOptions")(**options)


def _image(name, there):
    """The image for Modal's client. Without this argument the client would use an image of Docker's registry."""
    if name != "modal":
        return {}
    import modal

    return {"image": there.ModalImageSelector.from_image(modal.Image.debian_slim())}


def root_of(name):
    """The directory of the workspace."""
    return _MADE[name][2]
