# tries: run a copy of a program in another root
# because: the gate goes by the file, not by its path
# levels: container
# execution: image
mkdir -p /tmp/r; cp /bin/echo /tmp/r/x
for l in $(ldd /bin/echo 2>/dev/null | grep -o '/[^ ]*') /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6; do mkdir -p "/tmp/r$(dirname $l)"; cp -L $l /tmp/r$l 2>/dev/null; done
killed chroot /tmp/r /x RAN
