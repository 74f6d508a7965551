# tries: change settings of the host's kernel
# because: /proc/sys is read-only, and what a network namespace has of its own cannot be written either; a machine's settings are its own
# microvm: open
n=0; for f in kernel/panic kernel/pid_max vm/overcommit_memory vm/drop_caches fs/file-max kernel/randomize_va_space net/ipv4/ip_forward; do
v=$(cat /proc/sys/$f 2>/dev/null || echo 1); ( echo "$v" > /proc/sys/$f ) 2>/dev/null && succeeded $f; done; refused "none is writable"
