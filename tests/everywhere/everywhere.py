"""Makes a sandbox with each vendor's client and one natively; then each client finds all of them and runs a command in each.

With `defaults` the vendors' templates are built first, and each client's sandbox must be what its users expect."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).parent
ATOLL = os.environ["ATOLL_BIN"]
URL = os.environ["ATOLL_URL"]
# The default user of commands and its home, by vendor. LangSmith's sandboxes use the server's default image.
USERS = {
    "daytona": "daytona /home/daytona", "e2b": "user /home/user", "langsmith": "root /root", "modal": "root /root",
    "runloop": "user /home/user",
}
# Daytona's template is left out: its build needs PyPI and npm, which not every server's sandboxes reach.
TEMPLATES = {"e2b": "base", "modal": "modal-debian-slim", "runloop": "runloop"}
TOOLS = (
    "python --version >/dev/null && python -m pip --version >/dev/null && bash --version >/dev/null && git --version >/dev/null"
    " && grep --version | grep -q GNU && echo $(id -un) $HOME"
)


def output(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def native(method, path, body=None):
    headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, method=method, data=data, headers=headers), timeout=60) as response:
        return json.load(response)


def ids():
    return {sandbox["id"] for sandbox in native("GET", "/v1/sandboxes?limit=100")["items"]}


def environment():
    """The environment variables of the clients. Modal's are set already."""
    keys = {vendor: output(ATOLL, "key", "create", vendor, "--scope", "admin", "--for", vendor).strip() for vendor in ("daytona", "e2b", "runloop")}
    return {
        **os.environ,
        "DAYTONA_API_URL": f"{URL}/daytona/api", "DAYTONA_API_KEY": keys["daytona"],
        "E2B_API_URL": f"{URL}/e2b", "E2B_SANDBOX_URL": URL, "E2B_API_KEY": keys["e2b"],
        "RUNLOOP_BASE_URL": f"{URL}/runloop", "RUNLOOP_API_KEY": keys["runloop"],
        "LANGSMITH_ENDPOINT": f"{URL}/langsmith", "LANGSMITH_API_KEY": os.environ["ATOLL_API_KEY"], "LANGSMITH_TRACING": "false",
    }


def main(defaults):
    env = environment()

    def client(vendor, *arguments):
        return json.loads(output(env[f"{vendor.upper()}_PYTHON"], HERE / "client.py", vendor, *arguments, env=env, cwd="/"))

    if defaults:
        subprocess.run([ATOLL, "template", "build-defaults", "--from", "host", *TEMPLATES.values()], check=True)
    native("POST", "/v1/sandboxes", {"name": "of-nobodys"})
    for vendor, user in USERS.items():
        own = client(vendor, "make")
        if defaults and vendor in TEMPLATES:
            told = client(vendor, "run", own, TOOLS).strip()
            assert told == user, (vendor, told)
            print(f"{vendor}'s own: {told}, with python, pip, bash, git and GNU tools")
    made = ids()
    assert len(made) == len(USERS) + 1, made
    for id in made:
        subprocess.run([ATOLL, "exec", id, "--", "sh", "-c", f"echo {id} >/tmp/who && chmod 644 /tmp/who"], check=True)
    for vendor in USERS:
        found = [told.strip() for told in client(vendor, "in-all", "cat /tmp/who", *made)]
        assert sorted(found) == sorted(made), f"{vendor} finds {found}, and there are {made}"
        print(f"{vendor} finds all {len(made)}")
    # A sandbox that one client deletes is gone for all clients.
    for box in client("runloop", "all"):
        client("runloop", "end", box)
    assert not ids()
    for vendor in USERS:
        assert client(vendor, "all") == [], vendor


main("defaults" in sys.argv[1:])
