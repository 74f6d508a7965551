# tries: register an interpreter for all programs of the host (binfmt_misc)
# because: binfmt_misc is not mounted, and cannot be; a machine's is its own
# microvm: open
r=/proc/sys/fs/binfmt_misc/register
if mount -t binfmt_misc none /mnt 2>/dev/null; then r=/mnt/register; fi
( echo ':atk:M::ATKK::/tmp/x:' > $r ) 2>/dev/null && succeeded $r; refused "no register"
