# tries: use more memory than its profile may
# because: the kernel counts what each process may write to
# levels: container
# profile: tool
my $pid = open(my $from, "-|", "perl", "-e", 'my $x = "x" x (600 << 20); print "RAN"') // die;
my $said = <$from> // ""; close $from; $said eq "RAN" ? succeeded("600 MiB") : refused("it ended with $?");
