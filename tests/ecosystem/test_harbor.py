"""Harbor, as it is on PyPI: `oracle` solves a task and `nop` leaves it alone, in the environments of vendors whose protocol Atoll speaks."""

import json
import pathlib
import subprocess
import sys

import pytest

# Each run of Harbor's program takes many seconds of processor time before it begins.
pytestmark = pytest.mark.timeout(900)
HARBOR = str(pathlib.Path(sys.executable).parent / "harbor")

COMMON = {
    "instruction.md": "Write the sum of the numbers in /app/numbers into /app/sum.\n",
    "task.toml": """\
schema_version = "1.4"
[metadata]
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 300.0
cpus = 1
memory_mb = 1024
storage_mb = 2048
""",
    "solution/solve.sh": "#!/bin/bash\nset -e\nawk '{ s += $1 } END { print s }' /app/numbers > /app/sum\n",
    "tests/test.sh": """\
#!/bin/bash
[ "$(head -n 1 /app/numbers)" = 5 ] && [ "$(cat /app/sum 2>/dev/null)" = 42 ]
[ $? -eq 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
""",
}
# A task with its own Dockerfile and files, which is built into a template.
DOCKERFILE = {
    "environment/Dockerfile": "FROM host\nWORKDIR /app\nCOPY numbers /app/numbers\nRUN sort -n numbers -o numbers\n",
    "environment/numbers": "30\n5\n7\n",
}
# A task on an image that the server has. Its solution makes the file `numbers` itself.
IMAGE = {
    "task.toml": COMMON["task.toml"].replace("[environment]\n", '[environment]\ndocker_image = "host"\nworkdir = "/"\n'),
    "solution/solve.sh": "#!/bin/bash\nmkdir -p /app && printf '5\\n37\\n' > /app/numbers\n"
    + COMMON["solution/solve.sh"].partition("\n")[2],
    # A task must have this directory; Harbor uploads its files.
    "environment/beside": "",
}


@pytest.mark.parametrize(
    ("environment", "files"),
    [("e2b", DOCKERFILE), ("runloop", DOCKERFILE), ("modal", DOCKERFILE), ("langsmith", IMAGE), ("daytona", IMAGE)],
    ids=["e2b", "runloop", "modal", "langsmith", "daytona"],
)
def test_oracle_and_nop(environment, files, tmp_path):
    task = tmp_path / "adding-up"
    for name, text in {**COMMON, **files}.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rewards = {}
    for agent in ("oracle", "nop"):
        jobs = tmp_path / "jobs" / agent
        done = subprocess.run(
            [HARBOR, "run", "--path", task, "--agent", agent, "--env", environment, "--jobs-dir", jobs, "--yes"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        [result] = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
        trouble = result.get("exception_info")
        assert trouble is None, f"{trouble['exception_type']}: {trouble['exception_message']}"
        rewards[agent] = result["verifier_result"]["rewards"]["reward"]
    assert rewards == {"oracle": 1.0, "nop": 0.0}
