# tries: bind a directory elsewhere
# because: the mount calls are not let through; a machine mounts what is its own
# microvm: open
mkdir -p /tmp/b && must_fail mount --bind /tmp /tmp/b
