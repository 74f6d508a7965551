# tries: fill the host's quota of keys
# because: keyrings are not let through
# gvisor: open
# microvm: open
my ($type, $name, $value) = ("user", "x", "y"); must_fail("add_key", 248, $type, $name, $value, 1, -3);
