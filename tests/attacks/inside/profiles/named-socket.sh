# tries: connect to a socket of the agent that has a path
# because: a path is a file of the sandbox: an agent keeps its sockets where tools see nothing, or has none
# levels: container
# profile: agent
# must: open
out=$(perl -e 'use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack_sockaddr_un("/tmp/agent.sock")) or die "$!"; print "CONNECTED"' 2>&1)
case "$out" in *CONNECTED*) succeeded "$out";; esac; refused "$out"
