"""Reads the sandbox configuration of a task, in the form that Atoll needs."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any, Literal

from atoll import AsyncAtoll, Network
from inspect_ai.util import ComposeBuild, ComposeConfig, ComposeService, is_compose_yaml, is_dockerfile, parse_compose_yaml
from pydantic import BaseModel, ConfigDict

# Fields of a compose file's service that are supported, or that change nothing, such as `init`: a sandbox has its own.
_SERVICE_FIELDS = frozenset(
    {"image", "build", "working_dir", "environment", "user", "network_mode", "mem_limit", "cpus", "deploy", "entrypoint",
     "command", "init", "stop_grace_period", "x_default", "pull_policy", "tty", "stdin_open"}
)  # fmt: skip
_BUILD_FIELDS = frozenset({"context", "dockerfile"})


class AtollSandboxConfig(BaseModel):
    """The settings of a sample's sandbox. `sandbox=SandboxEnvironmentSpec("atoll", AtollSandboxConfig(…))`.

    Attributes:
        image: An image of the server; the server's default image when absent.
        template: A template, as `name` or `name:version`.
        snapshot: A snapshot, by id or tag.
        dockerfile: A Dockerfile to build a template from; the files that it copies lie beside it.
        user: User of commands; the image's own when absent.
        workdir: Directory of the sample's files; the image's own when absent.
        env: Environment of every command.
        cpu: Cores.
        memory: Such as `2GiB`.
        disk: The same.
        isolation: `container`, `gvisor` or `microvm`; the server's default when absent.
        internet: Whether the sandbox may reach the internet; the server's default when absent.
        allow: Hosts that the sandbox may reach, such as `*.example.com:443`, and nothing else.
        command: A program that runs in the background, as a container's command does.
        idle: Time after its last use at which the server deletes a sandbox that still exists.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str | None = None
    template: str | None = None
    snapshot: str | None = None
    dockerfile: str | None = None
    user: str | None = None
    workdir: str | None = None
    env: dict[str, str] | None = None
    cpu: float | None = None
    memory: str | int | None = None
    disk: str | int | None = None
    isolation: Literal["container", "gvisor", "microvm"] | None = None
    internet: bool | None = None
    allow: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    idle: str = "6h"

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def network(self) -> Network | None:
        """The network that the sandbox may reach; None leaves it to the server's default."""
        if self.allow:
            return Network(allow=list(self.allow))
        return None if self.internet is None else Network(internet=self.internet)


def read_config(config: BaseModel | str | None) -> AtollSandboxConfig:
    """Reads a task's configuration: nothing, this package's own configuration, a Dockerfile or a compose file.

    Raises:
        ValueError: The configuration asks for a feature that Atoll does not have.
    """
    if config is None:
        return AtollSandboxConfig()
    if isinstance(config, AtollSandboxConfig):
        return config
    if isinstance(config, ComposeConfig):
        return _composed(config, Path.cwd())
    if is_compose_yaml(config):
        return _composed(parse_compose_yaml(config, multiple_services=False), Path(config).parent)
    if is_dockerfile(config):
        return AtollSandboxConfig(dockerfile=str(Path(str(config)).resolve()))
    raise ValueError(f"{config!r} is neither a Dockerfile, nor a compose file, nor an AtollSandboxConfig")


def _composed(config: ComposeConfig, directory: Path) -> AtollSandboxConfig:
    if len(config.services) != 1:
        raise ValueError(
            f"the compose file has {len(config.services)} services: services reach each other, sandboxes do not; give it one"
        )
    [(name, service)] = config.services.items()
    unknown = sorted(set(service.model_fields_set) - _SERVICE_FIELDS - set(service.extensions))
    if unknown:
        raise ValueError(f"service {name} asks for {', '.join(unknown)}, which Atoll does not do")
    if isinstance(service.build, ComposeBuild):
        unknown = sorted(service.build.model_fields_set - _BUILD_FIELDS - set(service.build.extensions))
        if unknown:
            raise ValueError(f"the build of service {name} asks for {', '.join(unknown)}, which Atoll does not do")
    if service.network_mode not in {None, "none", "bridge"}:
        raise ValueError(f"service {name} has network_mode {service.network_mode}; use none or bridge")
    limits = service.deploy.resources.limits if service.deploy and service.deploy.resources else None
    cpu = service.cpus or (float(limits.cpus) if limits and limits.cpus else None)
    memory = service.mem_limit or (limits.memory if limits else None)
    return AtollSandboxConfig(
        image=None if service.build else service.image,
        dockerfile=_dockerfile(service, directory),
        user=service.user,
        workdir=service.working_dir,
        env=_environment(service),
        cpu=cpu,
        memory=_size(memory),
        internet=False if service.network_mode == "none" else None,
        command=(*_words(service.entrypoint), *_words(service.command)),
    )


def _dockerfile(service: ComposeService, directory: Path) -> str | None:
    build = service.build
    if build is None:
        return None
    if isinstance(build, str):
        return str((directory / build / "Dockerfile").resolve())
    return str((directory / (build.context or ".") / (build.dockerfile or "Dockerfile")).resolve())


def _words(command: list[str] | str | None) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command or ())


def _environment(service: ComposeService) -> dict[str, str] | None:
    given = service.environment
    if not given:
        return None
    pairs = given.items() if isinstance(given, dict) else (one.partition("=")[::2] for one in given)
    return {name: value or "" for name, value in pairs}


def _size(text: str | None) -> str | None:
    """Docker's `512m` and `2gb` are powers of two."""
    if text is None:
        return None
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = {"k": "KiB", "m": "MiB", "g": "GiB"}.get(number[-1:])
    return f"{number[:-1]}{unit}" if unit else number


_built: dict[str, str] = {}


async def template_of(client: AsyncAtoll, config: AtollSandboxConfig) -> str | None:
    """Returns the template to start from. A Dockerfile is built to one, once per content of the file in this process.

    The server takes steps that it built before from its cache.
    """
    if config.dockerfile is None:
        return config.template
    path = Path(config.dockerfile)
    text = path.read_text()
    key = hashlib.sha256(f"{path}\0{text}".encode()).hexdigest()[:16]
    if key not in _built:
        made: Any = await client.templates.build(f"inspect-{key}", dockerfile=text, context=str(path.parent))
        _built[key] = f"{made.name}:{made.version}"
    return _built[key]
