# tries: fill the host's quota of keys
# because: keyrings are not let through; a machine's are its own, in its own memory
# microvm: open
my ($type, $name, $value) = ("user", "x", "y"); must_fail("add_key", 248, $type, $name, $value, 1, -3);
