# tries: use up the gateway's connections
# because: there is a budget for one sandbox and for all
use Socket; my @s; for (1 .. 3000) { socket(my $s, AF_INET, SOCK_STREAM, 0) or last; fcntl($s, 4, 2048); connect($s, pack_sockaddr_in(80, inet_aton("93.184.215.14"))); push @s, $s } held(scalar(@s), " at once");
