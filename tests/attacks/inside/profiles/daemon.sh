# tries: reach what only the agent may, as an orphan in a session of its own
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
asks sh -c 'perl -e "exit if fork; exit if fork;" ; setsid -w perl /tmp/ask.pl'
