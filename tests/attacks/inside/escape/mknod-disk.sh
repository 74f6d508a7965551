# tries: make the device of the host's disk and read it
# because: devices cannot be made in a user namespace, and no mount inside has devices
# levels: container gvisor
for n in "8 0" "254 0" "253 0" "259 0" "7 0"; do rm -f /tmp/d; mknod /tmp/d b $n 2>/dev/null && head -c 512 /tmp/d >/dev/null 2>&1 && succeeded "$n"; done; refused "no device opens"
