# tries: stop a copy of a program at its start by tracing it, and let it go on
# because: who is killed does not go on for a tracer
# levels: container
# execution: image
system("cp /bin/echo /tmp/x");
pipe(my $read, my $write) or die; my $pid = fork;
if (!$pid) { close $read; open(STDOUT, ">&", $write); call(101, 0, 0, 0, 0) == 0 or print("no trace\n"); kill "STOP", $$; exec "/tmp/x", "RAN"; }
close $write; waitpid($pid, 2);
call(101, 0x4200, $pid, 0, 0x10 | 0x40);
my $stops = 0;
while ($stops++ < 50 && call(101, 7, $pid, 0, 0) == 0) { waitpid($pid, 0) > 0 or last; last if ($? & 0x7f) != 0x7f; }
call(101, 17, $pid, 0, 0); my $status = $?; local $/; my $out = <$read>;
if ($out =~ /RAN/) { succeeded($out) } refused("it ended with $status");
