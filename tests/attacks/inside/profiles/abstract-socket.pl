# tries: connect to an abstract socket of the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; connect($s, pack("S a*", AF_UNIX, "\0agent")) and succeeded("connected"); refused("connect: $!");
