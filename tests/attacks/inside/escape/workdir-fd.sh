# tries: run a command in the directory behind a descriptor (CVE-2024-21626: leaky vessels)
# because: no descriptor of a directory outside is ever open inside, and the agent closes all before exec
for n in 3 4 5 6 7 8 9 10 11 12; do for p in self 1; do [ -d "/proc/$p/fd/$n/../../../../../.." ] && cat "/proc/$p/fd/$n/../../../../../..$BAIT" 2>/dev/null && succeeded "$p/$n"; done; done; held "none"
