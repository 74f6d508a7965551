# tries: reach what only the agent may, from an exec in the profile of tools
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: tool
ask_file
asks perl /tmp/ask.pl
