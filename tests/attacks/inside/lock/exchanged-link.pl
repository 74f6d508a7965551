# tries: exchange a link between a program of the image and a copy while it is being run
# because: the file that was opened is asked, not a name
# levels: container
# execution: image
system("cp /bin/echo /tmp/x");
my $flip = fork; if (!$flip) { while (1) { for my $to ("/bin/true", "/tmp/x") { symlink $to, "/tmp/new"; rename "/tmp/new", "/tmp/l" } } }
select(undef, undef, undef, 0.05); my ($killed, $fine) = (0, 0);
for (1 .. 300) { my $out = `/tmp/l RAN 2>&1`; if ($out =~ /RAN/) { kill "KILL", $flip; succeeded($out) } ($? & 127) == 9 ? $killed++ : $fine++ }
kill "KILL", $flip; if (!$killed || !$fine) { die "$killed $fine" } refused("$killed of 300 were killed");
