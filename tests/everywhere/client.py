"""Runs one vendor's client: client.py VENDOR make, or all, or run ID LINE, or in-all LINE, or end ID.

Ids are the vendor's own. Modal's client finds sandboxes only by app or by id: for it, `all` and `in-all` take Atoll's
ids, which it converts to its own."""

import json
import sys


class daytona:
    def boxes():
        from daytona import Daytona

        return Daytona()

    def make():
        return daytona.boxes().create().id

    def all(*_):
        return [box.id for box in daytona.boxes().list()]

    def run(id, line):
        return daytona.boxes().get(id).process.exec(line).result


class e2b:
    def make():
        from e2b import Sandbox

        return Sandbox.create(timeout=600).sandbox_id

    def all(*_):
        from e2b import Sandbox

        pages, found = Sandbox.list(), []
        while pages.has_next:
            found += [box.sandbox_id for box in pages.next_items()]
        return found

    def run(id, line):
        from e2b import Sandbox

        return Sandbox.connect(id).commands.run(line).stdout


class langsmith:
    def client():
        from langsmith.sandbox import SandboxClient

        return SandboxClient()

    def make():
        return langsmith.client().create_sandbox().name

    def all(*_):
        return [box.name for box in langsmith.client().list_sandboxes()]

    def run(id, line):
        return langsmith.client().get_sandbox(name=id).run(line).stdout


class modal:
    def make():
        import modal

        app = modal.App.lookup("everywhere", create_if_missing=True)
        return modal.Sandbox.create(app=app, timeout=600).object_id

    def all(*ids):
        import modal

        boxes = [modal.Sandbox.from_id(f"sb-{id.removeprefix('sb')}") for id in ids]
        return [box.object_id for box in boxes if box.poll() is None]

    def run(id, line):
        import modal

        return modal.Sandbox.from_id(id).exec("sh", "-c", line).stdout.read()


class runloop:
    def client():
        from runloop_api_client import Runloop

        return Runloop()

    def make():
        return runloop.client().devboxes.create_and_await_running().id

    def all(*_):
        return [box.id for box in runloop.client().devboxes.list(status="running")]

    def run(id, line):
        return runloop.client().devboxes.execute_and_await_completion(id, command=line).stdout

    def end(id):
        return runloop.client().devboxes.shutdown(id).status


vendor, what, *arguments = sys.argv[1:]
client = globals()[vendor]
if what == "in-all":
    line, *ids = arguments
    told = [client.run(id, line) for id in client.all(*ids)]
else:
    told = getattr(client, what)(*arguments)
print(json.dumps(told))
