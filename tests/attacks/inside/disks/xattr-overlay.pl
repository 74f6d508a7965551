# tries: redirect a directory of the overlay to another by an attribute (trusted.overlay.redirect)
# because: such attributes want a capability that counts on the host
# levels: container
mkdir "/tmp/x"; my ($p, $n, $v) = ("/tmp/x", "trusted.overlay.redirect", "/etc"); must_fail("setxattr", 188, $p, $n, $v, 4, 0);
