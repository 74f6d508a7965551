# tries: reach what only the agent may, from the shell that it started
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
asks perl /tmp/ask.pl
