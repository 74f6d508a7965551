"""E2B's quickstart, unchanged. What makes it run on Atoll is its environment:

    export E2B_API_URL=http://localhost:4600/e2b
    export E2B_SANDBOX_URL=http://localhost:4600
    export E2B_API_KEY=$(atoll key create quickstart --for e2b)

    pip install e2b && python examples/e2b_switch.py
"""

from e2b import Sandbox

with Sandbox.create() as sandbox:
    result = sandbox.commands.run("echo Hello from a sandbox")
    print(result.stdout)

    sandbox.files.write("hello.py", "print('Hello', 6 * 7)")
    print(sandbox.commands.run("python3 hello.py").stdout)

    for entry in sandbox.files.list("/home/user"):
        print(entry.name, entry.size)
