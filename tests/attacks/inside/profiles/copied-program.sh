# tries: reach what only the agent may, with a copy of its program
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
asks /tmp/copy /tmp/ask.pl
