"""E2B's quickstart, as its package on PyPI has it, unchanged. What makes it run on Atoll is its environment:

    export E2B_API_URL=http://localhost:4600/e2b
    export E2B_SANDBOX_URL=http://localhost:4600
    export E2B_API_KEY=$(atoll key create quickstart --scope manage --for e2b)

    pip install e2b && python examples/e2b_switch.py
"""

from e2b import Sandbox

with Sandbox.create() as sandbox:
    result = sandbox.commands.run('echo "Hello from E2B!"')
    print(result.stdout)  # Hello from E2B!
