# tries: leave its cgroup, and its limits with it, through the parent
# because: what is mounted is its own cgroup, there is nothing above; a machine's cgroups are its own, and the process around it is in others
# microvm: open
for up in /sys/fs/cgroup/.. /sys/fs/cgroup/../..; do ls -d $up/atoll-* 2>/dev/null | grep -q . && succeeded "$up"; done
for p in $(find /sys/fs/cgroup -maxdepth 1 -name cgroup.procs 2>/dev/null); do ( echo 0 > $p ) 2>/dev/null && { now=$(cat /proc/self/cgroup); case "$now" in *..*) succeeded "$now";; esac; }; done
held "its root is its own"
