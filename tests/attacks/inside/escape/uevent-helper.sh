# tries: have the kernel run a program of its own at an event of a device
# because: /sys is read-only inside; what a machine's would start runs in it
# microvm: open
line_must_fail "echo /tmp/x > /sys/kernel/uevent_helper"
