# tries: get a network namespace of its own, with interfaces and filters to attack the kernel with (CVE-2022-25636, CVE-2024-1086)
# because: as above
# gvisor: open
# microvm: open
must_fail unshare -n true
