# tries: turn off the layout's randomness, or pages at zero, for a program with privileges
# because: only personalities that change nothing are let through; a machine's programs have no privileges beyond it
# microvm: open
must_fail("personality", 135, 0x0040000);
