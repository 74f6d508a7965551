"""Prints a CycloneDX bill of materials of the program: sbom.py VERSION.

It names the crates that are linked into the program and into the agent that it carries, from Cargo.lock, and the npm
packages that the dashboard's frontend is built of. The same sources give the same bytes.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
# The crates that are built into the program: itself, and the agent, which a build script compiles.
ROOTS = ("atoll", "atoll-guest")


def linked():
    """The crates that are linked into the program and the agent."""
    asked = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
    found = json.loads(subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
    packages = {one["id"]: one for one in found["packages"]}
    members = set(found["workspace_members"])
    nodes = {one["id"]: one for one in found["resolve"]["nodes"]}
    left = [one for one in members if packages[one]["name"] in ROOTS]
    if len(left) != len(ROOTS):
        sys.exit(f"packages {ROOTS} are not all in the workspace")
    seen = {}
    while left:
        one = left.pop()
        if one in seen:
            continue
        needs = [dep["pkg"] for dep in nodes[one]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        seen[one] = needs
        left += needs
    return {one: packages[one] for one in seen if one not in members}


def checksums():
    text = (ROOT / "Cargo.lock").read_text()
    entry = re.compile(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([^"]+)"')
    return {(name, version): checksum for name, version, checksum in entry.findall(text)}


def licensed(expression):
    return {"licenses": [{"expression": expression.replace("/", " OR ")}]} if expression else {}


def crates():
    known = checksums()
    for package in linked().values():
        name, version = package["name"], package["version"]
        purl = f"pkg:cargo/{quote(name)}@{quote(version)}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        component |= licensed(package["license"])
        if (name, version) in known:
            component["hashes"] = [{"alg": "SHA-256", "content": known[name, version]}]
        yield component


def frontend():
    """The npm packages in the dashboard, by its lock file."""
    lock = json.loads((ROOT / "dashboard/package-lock.json").read_text())
    for path, package in lock["packages"].items():
        if not path or package.get("dev"):
            continue
        name = path.split("node_modules/")[-1]
        purl = f"pkg:npm/{quote(name, safe='/')}@{package['version']}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": package["version"], "purl": purl}
        yield component | licensed(package.get("license"))


def main(version):
    components = sorted([*crates(), *frontend()], key=lambda one: one["bom-ref"])
    program = {"type": "application", "bom-ref": "atoll", "name": "atoll", "version": version} | licensed("Apache-2.0")
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    content = json.dumps(components, sort_keys=True)
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'atoll {version} {content}')}",
        "version": 1,
        "metadata": {"timestamp": f"{when:%Y-%m-%dT%H:%M:%SZ}", "component": program},
        "components": components,
        "dependencies": [{"ref": "atoll", "dependsOn": [one["bom-ref"] for one in components]}],
    }
    print(json.dumps(bill, indent=1))


main(sys.argv[1])
