# tries: leave cgroups behind whose names are no text, so that they cannot be removed
# because: names are bytes, and removal is bounded
# levels: container
d=$(printf '/sys/fs/cgroup/\377\376x'); mkdir "$d" 2>/dev/null || refused "none can be made"; held "made, and removed with it"
