# tries: leave a program with capabilities of the host on a disk that others mount
# because: capabilities of files count for the user namespace that wrote them
open my $f, ">", "/tmp/c"; close $f; my ($p, $n, $v) = ("/tmp/c", "security.capability", pack("L5", 0x2000001, 0xffffffff, 0, 0xffffffff, 0));
$! = 0; my $got = syscall(188, $p, $n, $v, 20, 0); refused("$!") if $got == -1; held("counts in its own user namespace only");
