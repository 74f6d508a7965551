# tries: make a mount by the new calls (fsopen, open_tree), which old filters do not know
# because: what is not on the list does not exist; a machine mounts what is its own
# microvm: open
my $type = "tmpfs"; $! = 0; my $fd = syscall(430, $type, 0);
if ($fd >= 0) { $! = 0; syscall(431, $fd, 6, 0, 0, 0) == 0 and syscall(432, $fd, 0, 0) >= 0 and succeeded("fsmount"); refused("fsconfig: $!") }
my $root = "/"; my $tree = syscall(428, -100, $root, 1); succeeded("open_tree clone") if $tree >= 0; refused("fsopen, open_tree: $!");
