# tries: make the device of the host's memory and read it
# because: as above
# levels: container gvisor
for n in "1 1" "1 2" "1 4" "10 200" "10 232" "10 229"; do rm -f /tmp/m; mknod /tmp/m c $n 2>/dev/null && head -c 16 /tmp/m >/dev/null 2>&1 && succeeded "$n"; done; refused "no device opens"
