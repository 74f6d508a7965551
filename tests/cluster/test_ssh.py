"""Two nodes: a client that logs in at one with SSH reaches the sandboxes of the other. The clients are OpenSSH."""

import hashlib
import os
import pty
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

from cluster import DEADLINE, Cluster, until


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster("a", "b")
    # Longer than a server takes to start on a busy host.
    cluster.lease = "15s"
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory in which the SSH clients keep their keys."""
    home = tmp_path_factory.mktemp("home")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "id"], check=True)
    return home


@pytest.fixture
def box(cluster):
    """A sandbox on the first node."""
    made = cluster.nodes[0].make(name=f"box-{os.urandom(3).hex()}")
    yield made["name"]
    cluster.nodes[0].call("DELETE", f"/v1/sandboxes/{made['name']}")


@pytest.fixture(scope="module", autouse=True)
def known(cluster, home):
    """Registers the operator's public key, which both nodes then know."""
    public = (home / "id.pub").read_text()
    cluster.nodes[1].ok("POST", "/v1/ssh-keys", {"name": "of the test", "public_key": public})


def options(home):
    plain = ["BatchMode=yes", "IdentitiesOnly=yes", f"IdentityFile={home / 'id'}", "LogLevel=ERROR"]
    # All nodes have one host key, so a client that knows one node knows all.
    plain += [f"UserKnownHostsFile={home / 'known'}", "StrictHostKeyChecking=accept-new", "HostKeyAlias=cluster"]
    return [part for option in plain for part in ("-o", option)]


def ssh(node, home, login, *args, input=None):
    host, port = node.listen.rsplit(":", 1)
    command = ["ssh", *options(home), "-p", port, "-l", login, host, *args]
    return subprocess.run(command, input=input, capture_output=True, timeout=DEADLINE)


def test_a_login_finds_what_another_node_has_before_it_makes_one(cluster, home, box):
    name = f"made-{os.urandom(3).hex()}"
    for node in cluster.nodes:
        assert ssh(node, home, f"new+{box}", "hostname").stdout.decode().strip() == box
        assert ssh(node, home, f"new+{name}", "hostname").stdout.decode().strip() == name
    listed = cluster.nodes[0].ok("GET", "/v1/sandboxes")["items"]
    assert [one["name"] for one in listed].count(name) == 1
    cluster.nodes[1].call("DELETE", f"/v1/sandboxes/{name}")


def test_a_command_its_streams_and_its_end(cluster, home, box):
    for node in cluster.nodes:
        done = ssh(node, home, box, "echo out; echo err >&2; hostname; exit 7")
        assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (7, b"out", b"err\n"), done
    killed = ssh(cluster.nodes[1], home, box, "kill -TERM $$; sleep 60")
    assert killed.returncode == 255, killed
    # Each is an exec of the sandbox, at whichever node the client logged in.
    listed = cluster.nodes[0].ok("GET", f"/v1/sandboxes/{box}/execs")["items"]
    assert len(listed) == 3


def test_much_goes_both_ways(cluster, home, box):
    content = os.urandom(12 << 20)
    done = ssh(cluster.nodes[1], home, box, "cat", input=content)
    assert done.returncode == 0 and hashlib.sha256(done.stdout).digest() == hashlib.sha256(content).digest()


def test_neighbours_that_do_not_read_hold_up_nobody(cluster, home, box):
    b = cluster.nodes[1]
    host, port = b.listen.rsplit(":", 1)
    command = ["ssh", *options(home), "-p", port, "-l", box, host, "cat /dev/zero"]
    # Several clients: the server notices that one has gone by a read or by a write, whichever comes first.
    start = lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    greedy = [start() for _ in range(4)]
    try:
        for one in greedy:
            assert one.stdout.read(1 << 20)
            one.send_signal(signal.SIGSTOP)
        assert ssh(b, home, box, "echo here").stdout == b"here\n"
    finally:
        for one in greedy:
            one.kill()
            one.communicate()
    # Their commands end, because their clients have gone.
    until("they end", lambda: all(e["state"] != "running" for e in b.ok("GET", f"/v1/sandboxes/{box}/execs")["items"]))


def test_files(cluster, home, box):
    node = cluster.nodes[1]
    host, port = node.listen.rsplit(":", 1)
    sent, back = home / "sent", home / "back"
    sent.write_bytes(os.urandom(5 << 20))
    copy = lambda *args: subprocess.run(["scp", "-q", *options(home), "-P", port, *args], check=True, timeout=DEADLINE)
    copy(sent, f"{box}@{host}:/tmp/file")
    copy(f"{box}@{host}:/tmp/file", back)
    assert sent.read_bytes() == back.read_bytes()
    sftp = ["sftp", "-q", *options(home), "-P", port, "-b", "-", f"{box}@{host}"]
    done = subprocess.run(sftp, input=b"mkdir /tmp/dir\nls -1 /tmp\n", capture_output=True, timeout=DEADLINE)
    assert done.returncode == 0 and b"/tmp/dir" in done.stdout, done


def test_a_terminal_and_its_size(cluster, home, box):
    host, port = cluster.nodes[1].listen.rsplit(":", 1)
    import fcntl
    import struct
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("ssh", ["ssh", "-tt", *options(home), "-p", port, "-l", box, host])
    seen = b""

    def until_seen(text):
        nonlocal seen
        end = time.monotonic() + DEADLINE
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)

    def sized(rows, cols):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    try:
        sized(30, 101)
        os.write(terminal, b"while sleep 0.1; do echo size: $(stty size); done\n")
        until_seen(b"size: 30 101")
        sized(41, 99)
        until_seen(b"size: 41 99")
        os.write(terminal, b"\x03\nexit 5\n")
        _, status = os.waitpid(pid, 0)
        pid = 0
        assert os.waitstatus_to_exitcode(status) == 5
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def test_ports_both_ways(cluster, home, box):
    a, b = cluster.nodes
    a.ok("POST", f"/v1/sandboxes/{box}/execs", {"shell": "cd /etc && exec python3 -m http.server 8000 --bind 127.0.0.1"})
    with socket.create_server(("127.0.0.1", 0)) as mine:
        here = mine.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            near = free.getsockname()[1]
        host, port = b.listen.rsplit(":", 1)
        way = ["-N", "-L", f"{near}:localhost:8000", "-R", f"9000:127.0.0.1:{here}", "-o", "ExitOnForwardFailure=yes"]
        command = ["ssh", *options(home), *way, "-p", port, "-l", box, host]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as client:
            try:

                def page():
                    try:
                        with socket.create_connection(("127.0.0.1", near), 5) as connection:
                            connection.sendall(b"GET /hostname HTTP/1.0\r\n\r\n")
                            return b"200 OK" in connection.makefile("rb").read()
                    except OSError:
                        return False

                until("the port of the sandbox answers", page)
                answers = threading.Thread(target=lambda: mine.accept()[0].sendall(b"from outside"))
                answers.start()
                inside = "import socket; print(socket.create_connection(('127.0.0.1', 9000)).recv(100).decode())"
                done = ssh(b, home, box, f'python3 -c "{inside}"')
                assert done.stdout == b"from outside\n", done
                answers.join()
            finally:
                client.terminate()


def test_our_own_client(cluster, box):
    for node in cluster.nodes:
        done = node.cli("ssh", box, "--", "echo", "hello")
        assert done.stdout == b"hello\n", done


def test_tokens_are_names_to_log_in_with(cluster, home, box):
    """Daytona's clients log in with such a token as the name: no key, no password."""
    a, b = cluster.nodes
    key = a.cli("key", "create", f"d-{box}", "--scope", "admin", "--for", "daytona").stdout.decode().strip()
    known = lambda: b.raw("GET", "/daytona/api/sandbox", key=key)[0] == 200
    until("the key is known", known)
    identity = a.ok("GET", f"/v1/sandboxes/{box}")["id"]
    for asked in (a, b):
        token = asked.ok("POST", f"/daytona/api/sandbox/{identity}/ssh-access", key=key)["token"]
        for node in (a, b):
            assert ssh(node, home, token, "echo in").stdout == b"in\n"
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        assert ssh(b, home, wrong, "true").returncode == 255


def test_who_may_not_is_not_let_in(cluster, home, box, tmp_path):
    a, b = cluster.nodes
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    (tmp_path / "known").write_bytes((home / "known").read_bytes())
    public = (tmp_path / "id.pub").read_text()
    assert ssh(b, tmp_path, box, "true").returncode == 255, "nobody's key"
    reader = a.ok("POST", "/v1/keys", {"name": f"reader-{box}", "scope": "read"})
    worker = a.ok("POST", "/v1/keys", {"name": f"worker-{box}", "scope": "exec"})
    for made in (reader, worker):
        until("the key is known", lambda: b.raw("GET", "/v1/sandboxes", key=made["secret"])[0] == 200)
    assert b.call("POST", "/v1/ssh-keys", {"name": "x", "public_key": public}, key=reader["secret"])[0] == 403
    b.ok("POST", "/v1/ssh-keys", {"name": "x", "public_key": public}, key=worker["secret"])
    assert ssh(b, tmp_path, box, "echo in").stdout == b"in\n"
    assert ssh(b, tmp_path, f"{box}x", "true").returncode == 255, "no such sandbox"
    # An open connection ends when its key is deleted, although node b, where it came in, does not have the sandbox.
    host, port = b.listen.rsplit(":", 1)
    command = ["ssh", *options(tmp_path), "-p", port, "-l", box, host, "echo begun; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"begun\n"
        a.raw("DELETE", f"/v1/keys/{worker['key']['id']}")
        assert client.wait(DEADLINE) == 255
    assert ssh(b, tmp_path, box, "true").returncode == 255


def test_clients_cannot_ask_as_nodes_do(cluster, box):
    for headers in ({}, {"atoll-node-ssh": '{"name":"' + box + '"}', "Upgrade": "atoll-ssh", "Connection": "upgrade"}):
        assert cluster.nodes[0].raw("GET", "/nodes/ssh", headers=headers)[0] == 404


@pytest.mark.long
def test_a_node_that_dies_ends_its_sessions(cluster, home, box):
    a, b = cluster.nodes
    host, port = b.listen.rsplit(":", 1)
    command = ["ssh", *options(home), "-p", port, "-l", box, host, "echo begun; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"begun\n"
        a.kill()
        assert client.wait(DEADLINE) == 255
    a.start()
    until("the sandbox is there again", lambda: ssh(b, home, box, "echo in").stdout == b"in\n")
    # A client that logs in while a is away waits until a's lease is over: then the sandbox is lost.
    a.kill()
    assert ssh(b, home, box, "true").returncode == 255
    a.start()
