"""Attacks through the API by clients with a key."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import time

from verdict import held_if, must_refuse
from world import ATOLL, PATIENCE, Broken

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


def attack_files_of_the_agent(world):
    """tries: read the agent's memory and environment, and change its limits and cgroup, by paths of files: /proc/self is the agent there
    because: the agent follows no magic link of /proc for a client, and its own directory there shows one only what it says of the whole sandbox; limits of containers are the host's"""
    box = world.sandbox()
    try:
        world.sh(box, "ln -s /proc/self /root/agent")
        read = [f"/{where}/{name}" for where in ("proc/self", "root/agent", "proc/1") for name in ("environ", "mem", "auxv", "cwd/../../.." + str(world.bait), "root" + str(world.bait))]
        read += [f"/proc/self/fd/{number}/../../../../../..{world.bait}" for number in range(3, 20)]
        def got(path):
            try:
                return world.ask("GET", f"/v1/sandboxes/{box}/{path}").text
            except http.client.IncompleteRead as cut:
                return cut.partial.decode(errors="replace")

        seen = "".join(got(f"files?path={path}") for path in read) + "".join(got(f"archive?path=/proc/self/fd/{number}") for number in range(3, 20))
        limits = [f"/proc/self/fd/{number}/{name}" for number in range(3, 20) for name in ("memory.max", "pids.max", "cgroup.freeze", "cgroup.kill", "cgroup.subtree_control")]
        changed = [path for path in [*limits, "/proc/self/oom_score_adj", "/proc/self/mem"] if world.ask("PUT", f"/v1/sandboxes/{box}/files?path={path}", b"1").status < 300]
        return held_if(world.bait_text not in seen and not changed and world.sh(box, "echo fine") == "fine\n", f"{changed} {seen[:100]!r}")
    finally:
        world.delete(box)


def attack_archive_unpacked_outside(world):
    """tries: have a client that copies files out write where it did not mean to, by links that become directories (kubectl cp, CVE-2019-1002101)
    because: `atoll cp` opens each name beneath the directory, follows no link, and makes files anew
    levels: container"""
    box, out = world.sandbox(), world.dir.parent / f"{world.dir.name}-out"
    out.mkdir()
    env = {**os.environ, "ATOLL_URL": world.url, "ATOLL_API_KEY": world.key}
    try:
        copies = []
        for prepare in (f"mkdir /root/o; cd /root/o; ln -s {world.dir} d; ln -s {world.bait} f; mkfifo p; echo x > s; chmod 6777 s",
                        "cd /root/o; rm d f; mkdir d; echo overwritten > d/bait; echo new > d/new; echo overwritten > f"):
            world.sh(box, prepare)
            copies.append(subprocess.run([ATOLL, "cp", f"{box}:/root/o", str(out)], env=env, capture_output=True, text=True, timeout=PATIENCE))
        if not any(path.name == "s" for path in out.rglob("*")):
            raise Broken(f"nothing was copied: {copies}")
        set_id = [path for path in out.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]
        return held_if(world.bait.read_text() == world.bait_text and not (world.dir / "new").exists() and not set_id, f"{copies} {set_id}")
    finally:
        shutil.rmtree(out)
        world.delete(box)


def attack_huge_user_database(world):
    """tries: exhaust the memory of the agent or the server by a user database that is huge, endless or never answers (CVE-2026-47262)
    because: the agent reads it, inside, and only so much of it; the server reads none"""
    box = world.sandbox(resources={"memory_bytes": 512 << 20})
    try:
        for prepare in ("yes 'x:x:7:7::/:/bin/sh' | head -c 20000000 > /etc/{0}", "truncate -s 8G /etc/{0}", "ln -s /dev/zero /etc/{0}", "mkfifo /etc/{0}", "mkdir /etc/{0}"):
            for name in ("passwd", "group"):
                world.sh(box, f"rm -rf /etc/{name}; " + prepare.format(name))
            for user in ("nobody-has-this", "1000:nor-this", "x"):
                answer = world.ask("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["true"], "user": user, "wait_ms": 20_000})
                if answer.status >= 500:
                    raise Broken(f"{prepare}: {answer!r}")
            world.ask("GET", f"/v1/sandboxes/{box}/files/list?path=/etc")
            if world.sh(box, "echo fine", user="0") != "fine\n":
                return "succeeded", prepare
        return "held", "the agent answers"
    finally:
        world.delete(box)


def attack_attach_again_and_again(world):
    """tries: have the server leak memory, threads or descriptors by clients that attach to a command and go away (CVE-2025-64329)
    because: what a client has goes with its connection
    slow: yes
    alone: yes
    levels: container"""
    box = world.sandbox()
    try:
        exec_ = world.ok("POST", f"/v1/sandboxes/{box}/execs", {"shell": "while :; do echo x; sleep 0.2; done", "stdin": True})["exec"]["id"]

        def attach(count):
            for _ in range(count):
                with socket.create_connection((world.host, world.port), 60) as connection:
                    connection.sendall(f"GET /v1/sandboxes/{box}/execs/{exec_}/attach HTTP/1.1\r\nhost: {world.host}:{world.port}\r\nauthorization: Bearer {world.key}\r\n"
                                       "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
                    if b" 101 " not in connection.recv(100):
                        raise Broken("the server does not attach")

        def has():
            """Descriptors, threads and KiB of memory of the server, when they do not fall any more."""
            least = None
            for _ in range(100):
                status = dict(line.split(":\t", 1) for line in open(f"/proc/{world.server.pid}/status") if ":\t" in line)
                now = (len(os.listdir(f"/proc/{world.server.pid}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]))
                least = now if least is None else tuple(map(min, least, now))
                time.sleep(0.05)
            return least

        attach(300)
        before = has()
        attach(1500)
        after = has()
        # A leak of a connection's buffers alone would be tens of MiB.
        return held_if(after[0] <= before[0] + 20 and after[1] <= before[1] + 20 and after[2] <= before[2] + (16 << 10), f"{before} became {after}")
    finally:
        world.delete(box)
