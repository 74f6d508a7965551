# tries: have the kernel run a program of its own when a cgroup is empty (CVE-2022-0492)
# because: no hierarchy of version 1 is mounted inside, and none can be; what a machine's would start runs in it
# microvm: open
mkdir -p /tmp/cg; mount -t cgroup -o memory cgroup /tmp/cg 2>/dev/null && echo /tmp/x > /tmp/cg/release_agent 2>/dev/null && succeeded release_agent
found=$(find /sys/fs/cgroup -name release_agent 2>/dev/null | head -n 1); [ -z "$found" ] || line_must_fail "echo /tmp/x > $found"
refused "there is no release_agent"
