# tries: read the kernel's memory
# because: masked; a machine's kernel is its own
# microvm: open
for f in /proc/kcore /dev/mem /dev/kmem /dev/port; do [ -e $f ] && head -c 4096 $f 2>/dev/null | grep -q . && succeeded $f; done; refused "nothing to read"
