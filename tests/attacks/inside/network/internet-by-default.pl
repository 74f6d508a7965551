# tries: reach the internet without a rule
# because: nothing is reached unless somebody says so
use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "93.184.215.14:80", Timeout => 10) or refused("no connection: $!");
print $s "GET / HTTP/1.0\r\nHost: example.com\r\n\r\n"; alarm 30; local $/; my $got = <$s> // ""; succeeded($got) if $got =~ m{^HTTP/1\.\d 2}; refused("the gateway says no");
