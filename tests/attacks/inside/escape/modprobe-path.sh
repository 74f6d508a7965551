# tries: have the kernel run a program of its own as its loader of modules
# because: /proc/sys is read-only inside; a machine's is its own, and what it names runs in it
# microvm: open
( echo /tmp/x > /proc/sys/kernel/modprobe ) 2>/dev/null || refused "modprobe"
grep -q /tmp/x /proc/sys/kernel/modprobe && succeeded modprobe; held "it was not taken"
