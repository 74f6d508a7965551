# tries: raise the limits of another process
# because: a limit that was lowered is raised by nobody without the host's rights
# levels: container
# profile: tool
my $pid = fork // die; if (!$pid) { sleep 60; exit } my $new = pack("QQ", ~0, ~0);
$! = 0; my $got = syscall(302, $pid, 2, $new, 0); my $why = $!; kill KILL => $pid; $got == 0 ? succeeded("raised") : refused($why);
