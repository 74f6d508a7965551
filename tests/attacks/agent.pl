# An agent that does not know of profiles: it has secrets, and starts a program that gets another profile.
use strict; use warnings; use Errno (); use Socket;
my $token = delete $ENV{TOKEN}; our $kept = "$token in memory";
mkdir for "/opt", "/opt/agent", "/opt/own";
for my $file ("/opt/agent/secret", "/opt/own/code") { open(my $to, ">", $file) or die "$file: $!"; print $to "$token\n"; close $to }
chdir "/opt/agent" or die; open(our $open, "<", "/opt/agent/secret") or die;
socket(my $abstract, PF_UNIX, SOCK_STREAM, 0) or die; bind($abstract, pack("S a*", AF_UNIX, "\0agent")) or die "bind: $!"; listen($abstract, 9) or die;
unlink "/tmp/agent.sock"; socket(my $named, PF_UNIX, SOCK_STREAM, 0) or die; bind($named, pack_sockaddr_un("/tmp/agent.sock")) or die; listen($named, 9) or die;
$SIG{USR1} = sub { print "succeeded: the agent was signalled\n"; exit 0 };
$ENV{AGENT} = $$; my $pid = fork // die;
if (!$pid) { chdir "/"; exec { $ARGV[0] } @ARGV or die "exec: $!" }
1 while waitpid($pid, 0) == -1 && $!{EINTR}; exit($? >> 8);
