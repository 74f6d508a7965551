# tries: get a network namespace of its own, with interfaces and filters to attack the kernel with (CVE-2022-25636, CVE-2024-1086)
# because: it wants a capability over the user namespace that root inside has not; a machine's kernel is its own to attack
# microvm: open
must_fail unshare -n true
