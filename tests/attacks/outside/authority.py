"""Attacks by clients whose keys have too few rights."""

from verdict import held_if, must_refuse
from world import Broken


def private(world, owner):
    sandbox = world.sandbox(key=owner["secret"], name=world.new_name("private"))
    world.ok("PUT", f"/v1/sandboxes/{sandbox}/sharing", {"visibility": "private"}, key=owner["secret"])
    return sandbox


def two_keys(world, scope="manage"):
    return world.new_key("manage"), world.new_key(scope)["secret"]


def attack_no_key(world):
    """tries: use the API without a key, with nonsense for one, and with one of the right shape
    because: every route but health and the document asks who it is
    levels: container"""
    paths = ["/v1/info", "/v1/sandboxes", "/v1/keys", "/v1/secrets", "/v1/doctor", "/v1/leaks", "/v1/usage"]
    keys = [None, "", "x", "atl_" + "A" * 43, "' or 1=1 --", "\u00ff" * 9]
    return must_refuse(*(world.ask("GET", path, key=key) for path in paths for key in keys))


def attack_read_key_writes(world):
    """tries: change something with a key that may only read
    because: each route names the scope that it wants
    levels: container"""
    key, box = world.new_key("read")["secret"], world.sandbox()
    try:
        tries = [("POST", "/v1/sandboxes", {}), ("DELETE", f"/v1/sandboxes/{box}", None), ("PATCH", f"/v1/sandboxes/{box}", {"labels": {}}),
                 ("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["true"]}), ("POST", f"/v1/sandboxes/{box}/pause", {"mode": "frozen"}),
                 ("POST", f"/v1/sandboxes/{box}/fork", {}), ("PUT", "/v1/secrets/A", {"value": "longenough", "scope": {"hosts": ["*"]}}),
                 ("POST", "/v1/keys", {"name": "x", "scope": "admin"}), ("POST", "/v1/volumes", {"name": "x"}),
                 ("POST", f"/v1/sandboxes/{box}/files/mkdir", {"path": "/x"})]
        return must_refuse(*(world.ask(method, path, body, key=key) for method, path, body in tries))
    finally:
        world.delete(box)


def attack_make_a_stronger_key(world):
    """tries: make a key that may more, with one that may less
    because: only the scope admin makes keys
    levels: container"""
    return must_refuse(*(world.ask("POST", "/v1/keys", {"name": world.new_name(), "scope": "admin"}, key=world.new_key(scope)["secret"])
                         for scope in ("read", "exec", "manage")))


def attack_private_sandbox_by_id(world):
    """tries: use another key's private sandbox by its id, on every route below it
    because: who may do what with one sandbox is asked in the one extractor that authenticates
    levels: container"""
    owner, other = two_keys(world)
    box = private(world, owner)
    try:
        tails = [("GET", "", None), ("DELETE", "", None), ("PATCH", "", {"labels": {}}), ("GET", "/execs", None), ("POST", "/execs", {"argv": ["id"]}),
                 ("GET", "/files?path=/etc/passwd", None), ("PUT", "/files?path=/x", b"x"), ("GET", "/archive?path=/etc", None),
                 ("GET", "/network", None), ("GET", "/ports", None), ("GET", "/metrics", None), ("POST", "/fork", {}), ("POST", "/snapshots", {}),
                 ("POST", "/checkpoints", {}), ("GET", "/checkpoints", None), ("GET", "/diff", None), ("POST", "/pause", {"mode": "frozen"}),
                 ("POST", "/resume", None), ("GET", "/sharing", None), ("PUT", "/sharing", {"visibility": "shared"}), ("POST", "/access", {"port": 80}),
                 ("GET", "/access", None), ("POST", "/lease", {}), ("GET", "/files/list?path=/", None), ("POST", "/rollback", {})]
        return must_refuse(*(world.ask(method, f"/v1/sandboxes/{box}{tail}", body, key=other) for method, tail, body in tails))
    finally:
        world.delete(box)


def attack_private_sandbox_is_an_oracle(world):
    """tries: tell a private sandbox from one that does not exist, by the answer
    because: to others it does not exist
    levels: container"""
    owner, other = two_keys(world)
    box = private(world, owner)
    try:
        there, nowhere = (world.ask("GET", f"/v1/sandboxes/{id}", key=other) for id in (box, box[:-3] + "zzz"))
        same = (there.status, there.code) == (nowhere.status, nowhere.code)
        return held_if(same, f"{there!r} and {nowhere!r}")
    finally:
        world.delete(box)


def attack_listings_show_private(world):
    """tries: find private sandboxes, their execs and snapshots in listings
    because: listings are cut to what one may see
    levels: container"""
    owner, other = two_keys(world)
    box = private(world, owner)
    try:
        snapshot = world.ok("POST", f"/v1/sandboxes/{box}/snapshots", {}, key=owner["secret"])["id"]
        text = "".join(world.ask("GET", path, key=other).text for path in ("/v1/sandboxes?limit=1000", "/v1/snapshots?limit=1000", "/v1/usage"))
        direct = world.ask("GET", f"/v1/snapshots/{snapshot}", key=other)
        world.ask("DELETE", f"/v1/snapshots/{snapshot}")
        return held_if(box not in text and snapshot not in text and direct.status == 404, "seen")
    finally:
        world.delete(box)


def attack_fork_what_is_private(world):
    """tries: make a sandbox from another key's private snapshot
    because: a private snapshot does not exist for others
    levels: container"""
    owner, other = two_keys(world)
    box = private(world, owner)
    try:
        snapshot = world.ok("POST", f"/v1/sandboxes/{box}/snapshots", {}, key=owner["secret"])["id"]
        answers = [world.ask("POST", "/v1/sandboxes", {"snapshot": snapshot}, key=other),
                   world.ask("GET", f"/v1/snapshots/{snapshot}/export", key=other),
                   world.ask("POST", f"/v1/snapshots/{snapshot}/tags", {"tag": "mine:1"}, key=other),
                   world.ask("DELETE", f"/v1/snapshots/{snapshot}", key=other)]
        world.ask("DELETE", f"/v1/snapshots/{snapshot}")
        return must_refuse(*answers)
    finally:
        world.delete(box)


def attack_name_like_an_id(world):
    """tries: take the place of another sandbox by a name that looks like its id
    because: ids are looked up before names, and no name may look like one
    levels: container"""
    box = world.sandbox()
    try:
        return must_refuse(*(world.ask("POST", "/v1/sandboxes", {"name": name}) for name in (box, "sb" + "0" * 20)),
                           world.ask("POST", f"/v1/sandboxes/{box}/fork", {"name": box}))
    finally:
        world.delete(box)


def attack_deleted_key(world):
    """tries: go on with a key that was deleted
    because: keys are looked up for each request, and what a key has open ends with it
    levels: container"""
    key = world.new_key("admin")
    world.ok("DELETE", f"/v1/keys/{key['key']['id']}")
    return must_refuse(world.ask("GET", "/v1/info", key=key["secret"]), world.ask("POST", "/v1/sandboxes", {}, key=key["secret"]))


def attack_grant_to_oneself(world):
    """tries: grant itself a role on another's private sandbox
    because: only who may manage it grants
    levels: container"""
    owner, _ = two_keys(world)
    other = world.new_key("manage")
    box = private(world, owner)
    try:
        path = f"/v1/sandboxes/{box}/sharing/{other['key']['id']}"
        return must_refuse(world.ask("PUT", path, {"role": "manage"}, key=other["secret"]))
    finally:
        world.delete(box)


def attack_key_in_places(world):
    """tries: smuggle a key by a query, a cookie or another header, where browsers and logs would have it
    because: a key is taken from the headers for it only
    levels: container"""
    tries = [world.ask("GET", f"/v1/sandboxes?key={world.key}", key=None), world.ask("GET", f"/v1/sandboxes?atoll_token={world.key}", key=None),
             world.ask("GET", "/v1/sandboxes", key=None, headers={"cookie": f"atoll={world.key}; key={world.key}"})]
    return must_refuse(*tries)


def attack_lease_of_another(world):
    """tries: change a sandbox on which another key has a lease
    because: a lease keeps others from changing anything
    levels: container"""
    owner, other = two_keys(world)
    box = world.sandbox(key=owner["secret"])
    try:
        taken = world.ask("POST", f"/v1/sandboxes/{box}/lease", {"ttl_ms": 60_000}, key=owner["secret"])
        if taken.status >= 300:
            raise Broken(repr(taken))
        return must_refuse(world.ask("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["true"]}, key=other),
                           world.ask("PUT", f"/v1/sandboxes/{box}/files?path=/x", b"x", key=other))
    finally:
        world.delete(box)
