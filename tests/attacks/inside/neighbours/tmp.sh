# tries: find files of others in directories that everybody may write to
# because: each has a disk of its own
f=$(find /tmp /var/tmp /dev/shm /run -mindepth 1 2>/dev/null | grep -v "^/run/[a-z-]*$\|/run/lock\|systemd\|/run/mount" | head -n 3); [ -z "$f" ] || succeeded "$f"; held "empty"
