# tries: write to /sys
# because: it is read-only inside; a machine's is its own, of its own devices
# microvm: open
w=$(find /sys -maxdepth 6 -type f -writable 2>/dev/null | head -n 40); for f in $w; do v=$(head -c 64 "$f" 2>/dev/null) || continue; [ -n "$v" ] || continue; ( echo "$v" > "$f" ) 2>/dev/null && case $f in /sys/fs/cgroup/*) ;; *) succeeded "$f";; esac; done; refused "nothing takes it"
