# tries: learn the data directory of the server from mounts and descriptors (CVE-2024-21626 begins so)
# because: mounts are attached nowhere before; their sources say nothing of the host
found=$(cat /proc/self/mountinfo /proc/mounts /proc/self/maps 2>/dev/null | grep -o "/var/tmp[^ ]*\|/var/lib/atoll[^ ]*\|atoll-ephemeral[^ ]*" | head -n 3)
[ -z "$found" ] || succeeded "$found"; held "no path of the host"
