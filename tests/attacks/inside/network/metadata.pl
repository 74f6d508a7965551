# tries: reach the metadata of the cloud that the host is in
# because: link-local addresses are reached only by a rule that names them
# must: refused or held
use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "169.254.169.254:80", Timeout => 10) or refused("no connection: $!");
print $s "GET /latest/meta-data/ HTTP/1.0\r\nHost: 169.254.169.254\r\n\r\n"; alarm 30; local $/; my $got = <$s> // ""; refused("the gateway says no") if $got eq "" || $got =~ /40[03]|50[023]/; succeeded($got);
