# tries: run a copy of a program from another thread than the first
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
use Config; unless ($Config{useithreads}) { die "perl without threads" } require threads;
system("cp /bin/echo /tmp/x");
forked(sub { threads->create(sub { exec "/tmp/x", "RAN" })->join; });
