# tries: see commands of neighbours
# because: the PID namespace is its own
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q "the-[n]eighbour\|ready-[j]son" && succeeded "seen"; held "only its own"
