# tries: raise its own limit of memory
# because: the files that hold limits do not belong to root inside; a machine's cgroups are its own, and the process around it is in others
# microvm: open
for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do [ -e $f ] && ( echo max > $f ) 2>/dev/null && succeeded $f; done; refused "none can be written"
