# tries: enter the namespaces of process 1, which is nearest to the host
# because: setns wants capabilities there, and process 1 is inside anyway, in a machine too
# gvisor: refused or held
# microvm: open
open my $ns, "<", "/proc/1/ns/mnt" or refused("its namespace does not open: $!");
must_fail("setns", 308, fileno($ns), 0);
