# tries: reach what only the agent may, under the name of its program
# because: the host's kernel knows the profile of each process: it is inherited, and changes only on the way down
# levels: container
# profile: agent
ask_file
asks perl -e 'exec { "/tmp/copy" } "/usr/bin/perl", "/tmp/ask.pl"'
