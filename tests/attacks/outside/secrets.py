"""Attacks on the values of secrets."""

from verdict import held_if, must_refuse
from world import Broken

VALUE = "hunter2-is-the-value"


def secret(world, **scope):
    name = world.new_name("S").replace("-", "_").upper()
    world.ok("PUT", f"/v1/secrets/{name}", {"value": VALUE, "scope": {"hosts": ["api.example.com"], **scope}})
    return name


def attack_read_the_value(world):
    """tries: read a secret's value back, with any key
    because: values go in and never come out
    levels: container"""
    name = secret(world)
    text = "".join(world.ask("GET", path).text for path in (f"/v1/secrets/{name}", "/v1/secrets", "/v1/secret-uses"))
    return held_if(VALUE not in text, "in an answer")


def attack_value_inside(world):
    """tries: find the value in a sandbox that uses it: variables, files, memory, /proc
    because: a placeholder is inside; the value is put in by the gateway"""
    name = secret(world)
    rule = {"name": "r", "hosts": ["api.example.com"], "bearer": f"{{secret:{name}}}", "placeholders": [{"secret": name, "env": "TOKEN"}]}
    box = world.sandbox(egress={"internet": "off", "rules": [], "inject": [rule]})
    try:
        found = world.sh(box, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; grep -rs hunter2 /etc /root /home /tmp /run /var 2>/dev/null | head")
        if "TOKEN=" not in found:
            raise Broken(found[:300])
        return held_if("hunter2" not in found, found[:200])
    finally:
        world.delete(box)


def attack_use_elsewhere(world):
    """tries: have a secret sent to another host than it is for
    because: a secret has a lock of its own, whatever a rule says
    levels: container"""
    name = secret(world)
    rule = {"name": "r", "hosts": ["evil.example.net"], "bearer": f"{{secret:{name}}}"}
    return must_refuse(world.ask("POST", "/v1/sandboxes", {"egress": {"internet": "off", "rules": [], "inject": [rule]}}))


def attack_widen_the_lock(world):
    """tries: open a secret's lock to all hosts, with a key that may not
    because: secrets are the scope admin's
    levels: container"""
    name, key = secret(world), world.new_key("manage")["secret"]
    return must_refuse(world.ask("PUT", f"/v1/secrets/{name}", {"scope": {"hosts": ["*"]}}, key=key),
                       world.ask("DELETE", f"/v1/secrets/{name}", key=key))


def attack_value_in_the_log(world):
    """tries: find values in the server's log, after refusals that repeat what was sent
    because: secrets are a type that prints as asterisks; refusals do not repeat them
    levels: container"""
    secret(world)
    world.ask("PUT", "/v1/secrets/1A", {"value": VALUE, "scope": {"hosts": ["x"]}})
    answer = world.ask("PUT", "/v1/secrets/B", {"value": VALUE, "scope": {"hosts": []}})
    world.log.flush()
    return held_if(VALUE not in (world.dir / "log").read_text(errors="replace") + answer.text and world.key not in world.words(), "in the log")
