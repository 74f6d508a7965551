# tries: open the host's root by a file handle (CVE-2014-9357, "shocker")
# because: open_by_handle_at wants a capability over the host
my $handle = pack("L l Q", 8, 1, 2) . "\0" x 128;
opendir(my $root, "/") or die; must_fail("open_by_handle_at", 304, fileno($root) // 0, $handle, 0);
