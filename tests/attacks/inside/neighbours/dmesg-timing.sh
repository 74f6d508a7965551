# tries: learn how loaded the host is
# because: facts about the hardware are no secret here; see the threat model
# must: open
cat /proc/loadavg >/dev/null 2>&1 && succeeded "loadavg and cpuinfo can be read"; refused "not there"
