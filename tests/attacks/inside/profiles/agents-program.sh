# tries: reach what only the agent may, with the program that the agent runs
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
asks /usr/bin/perl /tmp/ask.pl
