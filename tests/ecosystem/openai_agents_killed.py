"""An agent's process that the test kills: it works in a sandbox, saves the session's state in a file, and waits."""

import asyncio
import json
import pathlib
import sys

from agents.sandbox import Manifest
from openai_agents_clients import client_of, root_of


async def main(name, saved):
    client, options = client_of(name)
    session = await client.create(manifest=Manifest(root=root_of(name)), options=options)
    await session.start()
    done = await session.exec("echo before the kill > kept; echo the same machine > /tmp/beside")
    assert done.ok(), done.stderr
    pathlib.Path(saved).write_text(json.dumps(client.serialize_session_state(session.state)))
    print("saved", flush=True)
    await asyncio.sleep(600)


asyncio.run(main(*sys.argv[1:]))
