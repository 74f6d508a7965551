# tries: change quotas of the host's file systems
# because: it is not let through
my $place = "/"; must_fail("quotactl", 179, 0x80000100, $place, 0, 0);
