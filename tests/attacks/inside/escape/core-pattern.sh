# tries: have the kernel run a program of its own when something crashes
# because: /proc/sys is read-only inside; a machine's is its own, and what it names runs in it
# microvm: open
( echo "|/tmp/x %P" > /proc/sys/kernel/core_pattern ) 2>/dev/null || refused "core_pattern"
grep -q /tmp/x /proc/sys/kernel/core_pattern && succeeded core_pattern; held "it was not taken"
