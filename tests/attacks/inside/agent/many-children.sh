# tries: leave processes behind that outlive the command
# because: they are in the sandbox's cgroup, and go with it
for i in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; held "they end with the sandbox"
