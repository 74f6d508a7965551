# tries: reach what only the agent may, from a user namespace of its own
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
out=$(unshare --user --map-root-user true 2>&1) || refused "$out"
asks unshare --user --map-root-user perl /tmp/ask.pl
