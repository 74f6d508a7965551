"""Network policies: the hosts that a sandbox may reach, and the secrets that the gateway puts into its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from . import params as p


@dataclass(frozen=True)
class UseSecret:
    """A secret of the server that a sandbox uses without seeing its value.

    The sandbox gets a placeholder in an environment variable. When the sandbox sends a request to one of the hosts, and
    `Authorization` or one of the usual headers for keys has the placeholder, the gateway replaces it by the value.

    Without `hosts`, the hosts are those of the secret's own scope.
    """

    name: str
    hosts: Sequence[str] = ()
    """As `HOST` or `HOST:PORT`."""
    env: str | None = None
    """The variable; the secret's name when absent."""
    prefix: str | None = None
    """What the placeholder begins with, for programs that insist."""
    headers: Sequence[str] = ()
    """Further headers in which it is replaced."""
    path: bool = False
    query: bool = False
    body: bool = False
    mask_responses: bool = False

    def rule(self, hosts: Sequence[str]) -> p.InjectRule:
        """The injection rule of this secret for these hosts, in the API's form."""
        placeholder: p.Placeholder = {"secret": self.name, "env": self.env or self.name}
        if self.prefix is not None:
            placeholder["prefix"] = self.prefix
        if self.headers:
            placeholder["headers"] = list(self.headers)
        for place in ("path", "query", "body"):
            if getattr(self, place):
                placeholder[place] = True
        names = [_split(host) for host in hosts]
        rule: p.InjectRule = {
            "name": self.name,
            "hosts": [name for name, _ in names],
            "bearer": f"{{secret:{self.name}}}",
            "placeholders": [placeholder],
        }
        if ports := sorted({int(port) for _, port in names if port is not None}):
            rule["ports"] = ports
        if self.mask_responses:
            rule["mask_responses"] = True
        return rule


@dataclass(frozen=True)
class Network:
    """The hosts that a sandbox may reach: none with `Network()`, every public one with `Network(internet=True)`.

    `allow` and `deny` take domains (`example.com`, `*.example.com`, `*`) and addresses (`10.1.2.3`, `10.0.0.0/8`), each
    with `:PORT` or `:FROM-TO` to mean these ports only. The entries of `deny` are looked at before those of `allow`.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    internet: bool = False
    rules: Sequence[p.Rule] = ()
    """Further rules in the API's form, with methods and paths; looked at first."""
    inject: Sequence[p.InjectRule] = ()
    """Changes to requests, in the API's form."""
    connections: int | None = None
    """Most connections at once."""
    bytes_per_s: int | None = None
    """Most bytes a second, each direction."""

    def policy(self, inject: Sequence[p.InjectRule] = ()) -> p.EgressPolicy:
        """The policy in the API's form. It allows the hosts of the injection rules; `allow` need not name them."""
        injected = [*self.inject, *inject]
        rules: list[p.Rule] = list(self.rules)
        rules += [_rule("deny", text) for text in self.deny]
        rules += [_rule("allow", text) for text in self.allow]
        if not self.internet:
            rules += _needed(injected)
        policy: p.EgressPolicy = {"internet": "on" if self.internet else "rules" if rules else "off", "rules": rules}
        if injected:
            policy["inject"] = injected
        limits: p.EgressLimits = {}
        if self.connections is not None:
            limits["connections"] = self.connections
        if self.bytes_per_s is not None:
            limits["bytes_per_s"] = self.bytes_per_s
        if limits:
            policy["limits"] = limits
        return policy


def _needed(rules: Sequence[p.InjectRule]) -> list[p.Rule]:
    return [
        {"action": "allow", "domain": host, "ports": [str(port)]}
        for rule in rules
        for host in rule["hosts"]
        for port in rule.get("ports") or [443]
    ]


def _split(text: str) -> tuple[str, str | None]:
    """Splits `HOST:PORT` or `HOST:FROM-TO` into the host and the port or range of ports, which may be absent."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or None
    if text.count(":") > 1:
        return text, None
    host, _, port = text.partition(":")
    return host, port or None


def _rule(action: p.Action, text: str) -> p.Rule:
    host, port = _split(text)
    rule: p.Rule = {"action": action}
    try:
        rule["cidr"] = str(ip_network(host, strict=False))
    except ValueError:
        rule["domain"] = host
    if port is not None:
        rule["ports"] = [port]
    return rule


def labels_query(labels: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """The query parameters that make a listing show only sandboxes with these labels."""
    return [("label", f"{key}={value}") for key, value in (labels or {}).items()]
