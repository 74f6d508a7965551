# tries: read what the host's kernel logs
# because: /dev/kmsg is not there and syslog is not let through; gVisor makes its log up, and a machine's is its own
# gvisor: open
# microvm: open
if head -c 1 /dev/kmsg 2>/dev/null | grep -q .; then succeeded kmsg; fi; must_fail dmesg
