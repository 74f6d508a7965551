# tries: reach the host's files through /proc/*/root and /proc/*/cwd
# because: every process in its /proc is its own, in its own root
for p in /proc/[0-9]*; do for l in root cwd; do cat "$p/$l$BAIT" 2>/dev/null && succeeded "$p/$l"; done; done; held "all of them lead inside"
