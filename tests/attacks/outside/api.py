"""Attacks through the API by clients with a key."""

import json
import socket

from verdict import held_if, must_refuse

HOSTILE_PATHS = ["../../../etc/shadow", "/../../../../etc/shadow", "/proc/1/root/etc/shadow", "/proc/self/root/../../etc/shadow",
                 "/%2e%2e/%2e%2e/etc/shadow"]


def attack_file_paths_lead_out(world):
    """tries: read a file of the operator's by paths that lead out
    because: paths are resolved inside, by the agent, in the sandbox's own root"""
    box = world.sandbox()
    try:
        world.sh(box, f"ln -s {world.bait} /root/link; ln -s /proc/1/root /root/up; ln -s / /root/slash")
        paths = [str(world.bait), "/root/link", f"/root/up{world.bait}", f"/root/slash{world.bait}", f"/../../..{world.bait}",
                 f"/root/../../../..{world.bait}"]
        text = "".join(world.ask("GET", f"/v1/sandboxes/{box}/files?path={path}").text for path in paths)
        text += world.ask("GET", f"/v1/sandboxes/{box}/archive?path=/root").text
        return held_if(world.bait_text not in text, "it was read")
    finally:
        world.delete(box)


def attack_write_through_links(world):
    """tries: write to a file of the operator's through links inside
    because: as above"""
    box = world.sandbox()
    try:
        world.sh(box, f"ln -s {world.bait} /root/link; ln -s {world.dir} /root/dir")
        for path in ("/root/link", "/root/dir/bait", f"/../..{world.bait}", str(world.bait)):
            world.ask("PUT", f"/v1/sandboxes/{box}/files?path={path}&parents=true", b"overwritten")
            world.ask("DELETE", f"/v1/sandboxes/{box}/files?path={path}")
        return held_if(world.bait.read_text() == world.bait_text, "it was overwritten")
    finally:
        world.delete(box)


def attack_archive_leads_out(world):
    """tries: unpack an archive with names and links that lead out
    because: archives are unpacked inside, beneath the directory, following nothing out"""
    import io
    import tarfile
    box = world.sandbox()
    try:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            def add(name, **fields):
                entry = tarfile.TarInfo(name)
                for field, value in fields.items():
                    setattr(entry, field, value)
                body = b"overwritten" if entry.type == tarfile.REGTYPE else b""
                entry.size = len(body)
                tar.addfile(entry, io.BytesIO(body))
            add("l", type=tarfile.SYMTYPE, linkname=str(world.dir))
            add("l/bait")
            add("../../../../../.." + str(world.bait))
            add("h", type=tarfile.LNKTYPE, linkname=str(world.bait))
        for path in ("/tmp", "/"):
            world.ask("PUT", f"/v1/sandboxes/{box}/archive?path={path}", packed.getvalue())
        return held_if(world.bait.read_text() == world.bait_text, "it was overwritten")
    finally:
        world.delete(box)


def attack_huge_numbers(world):
    """tries: make the server allocate or overflow by numbers
    because: every number has bounds, and is refused beyond them
    levels: container"""
    big = [2**63, 2**64 - 1, -1, 10**30, 1e308]
    tries = [world.ask("POST", "/v1/sandboxes", {"resources": {"memory_bytes": n}}) for n in big]
    tries += [world.ask("POST", "/v1/sandboxes", {"ttl_ms": n}) for n in (-1, 10**30)]
    tries += [world.ask("POST", "/v1/sandboxes/batch", {"count": n}) for n in (0, 10**9)]
    return must_refuse(*tries)


def attack_deep_json(world):
    """tries: overflow a stack of the server by JSON that is nested 100,000 deep
    because: the parser has a limit of depth
    levels: container"""
    body = b'{"labels":' * 1 + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return must_refuse(world.ask("POST", "/v1/sandboxes", body, headers={"content-type": "application/json"}))


def attack_huge_body(world):
    """tries: fill the server's memory by a body that says it is a terabyte
    because: bodies are bounded before they are read, and streamed where they may be large
    slow: yes
    levels: container"""
    with socket.create_connection((world.host, world.port), 60) as connection:
        connection.sendall(f"POST /v1/sandboxes HTTP/1.1\r\nhost: {world.host}\r\nauthorization: Bearer {world.key}\r\n"
                           "content-type: application/json\r\ncontent-length: 1099511627776\r\n\r\n".encode())
        head = connection.recv(200)
    return held_if(b" 4" in head[:12] or b" 504 " in head[:14], repr(head))


def attack_smuggled_request(world):
    """tries: hide a second request in the first by two lengths
    because: one parser, and ambiguous lengths end the connection
    levels: container"""
    body = "0\r\n\r\nGET /v1/keys HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection((world.host, world.port), 60) as connection:
        connection.sendall(f"POST /v1/sandboxes HTTP/1.1\r\nhost: {world.host}\r\ncontent-length: {len(body)}\r\n"
                           f"transfer-encoding: chunked\r\n\r\n{body}".encode())
        connection.settimeout(5)
        got = b""
        try:
            while part := connection.recv(65536):
                got += part
        except TimeoutError:
            pass
    return held_if(b" 200 " not in got, repr(got[:300]))


def attack_header_injection(world):
    """tries: put headers of its own into answers by names with line breaks
    because: names are checked; texts in errors are cleaned
    levels: container"""
    answers = [world.ask("POST", "/v1/sandboxes", {"name": "a\r\nset-cookie: x=1"}),
               world.ask("GET", "/v1/sandboxes/a%0d%0aset-cookie:%20x=1")]
    if any(answer.headers.get("set-cookie") for answer in answers):
        return "succeeded", "a cookie"
    return must_refuse(*answers)


def attack_errors_tell_of_the_host(world):
    """tries: learn paths of the host and addresses of memory from errors
    because: errors name what is wrong in the words of the API
    levels: container"""
    text = "".join(world.ask(method, path, body).text for method, path, body in
                   [("POST", "/v1/sandboxes", {"image": "no/such"}), ("POST", "/v1/sandboxes", {"snapshot": "x:y"}), ("GET", "/v1/sandboxes/%00", None),
                    ("POST", "/v1/images/import?name=x", b"\0" * 1024), ("POST", "/v1/snapshots/import", b"no"), ("GET", "/v1/volumes/../x", None)])
    return held_if(str(world.dir) not in text and "/var/tmp" not in text and "panicked" not in text and "src/" not in text, text[:300])


def attack_exec_id_of_another(world):
    """tries: read the output of another sandbox's command by its id
    because: an exec is looked up in its sandbox
    levels: container"""
    one, other = world.sandbox(), world.sandbox()
    try:
        exec_ = world.ok("POST", f"/v1/sandboxes/{one}/execs", {"argv": ["echo", "secret"], "wait_ms": 20_000})["exec"]["id"]
        return must_refuse(*(world.ask("GET", f"/v1/sandboxes/{other}/execs/{exec_}{tail}") for tail in ("", "/output", "/events")))
    finally:
        world.delete(one)
        world.delete(other)


def attack_set_loader_by_environment(world):
    """tries: have the agent or the server load a library by variables of the sandbox (LD_PRELOAD, PATH)
    because: variables go to commands inside only; the agent is static"""
    box = world.sandbox(env={"LD_PRELOAD": "/tmp/x.so", "PATH": "/tmp", "LD_LIBRARY_PATH": "/tmp"})
    try:
        exit_, out, _ = world.run(box, ["/bin/sh", "-c", "echo works"])
        return held_if(exit_ and out == "works\n", f"{exit_} {out}")
    finally:
        world.delete(box)


def attack_mark_of_a_log(world):
    """tries: forge lines of the server's log by names with line breaks and control sequences
    because: what is logged is escaped
    levels: container"""
    world.ask("GET", "/v1/sandboxes/x%0aFORGED%20LINE%1b[31m")
    world.ask("POST", "/v1/sandboxes", {"name": "x\nFORGED LINE"})
    lines = world.words().splitlines()
    return held_if(not any(line.startswith("FORGED") for line in lines), "a line of its own")


def attack_metrics_without_a_key(world):
    """tries: read what runs here from metrics, without a key
    because: metrics want a key unless the operator opened them
    levels: container"""
    return must_refuse(world.ask("GET", "/metrics", key=None))


def attack_foreign_origin(world):
    """tries: have a browser of the operator's change something for another site
    because: changes and WebSockets with a foreign origin are refused
    levels: container"""
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    return must_refuse(world.ask("POST", "/v1/sandboxes", {}, headers=headers),
                       world.ask("POST", "/v1/sandboxes", json.dumps({}).encode(), headers={**headers, "content-type": "text/plain"}))


def attack_rebinding(world):
    """tries: reach the API under another name (DNS rebinding), as a page in a browser would
    because: without a key nothing is answered, and a page has none; its origin is foreign
    levels: container"""
    return must_refuse(world.ask("POST", "/v1/sandboxes", {}, host="rebound.example", headers={"origin": "http://rebound.example:1"}),
                       world.ask("GET", "/v1/sandboxes", key=None, host="rebound.example"))
