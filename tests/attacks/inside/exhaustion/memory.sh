# tries: take the host's memory
# limits: memory_bytes=268435456
# because: it is limited; the kernel ends what is beyond
# alone: yes
perl -e 'my @x; push @x, "x" x (16 << 20) for 1 .. 64; print "all\n"' 2>/dev/null | grep -q all && succeeded "1 GiB"; held "ended at its limit"
