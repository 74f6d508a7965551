# tries: bind a directory elsewhere
# because: the mount calls are not let through
# gvisor: open
# microvm: open
mkdir -p /tmp/b && must_fail mount --bind /tmp /tmp/b
