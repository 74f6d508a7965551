# tries: freeze its own agent to be neither asked nor ended
# because: the server does not rely on it: deletions kill from outside
# levels: container
( echo 1 > /sys/fs/cgroup/cgroup.freeze ) 2>/dev/null && succeeded "cgroup.freeze"; refused "cgroup.freeze is not its own"
