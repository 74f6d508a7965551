# tries: get a mount namespace of its own
# because: as above
# gvisor: open
# microvm: open
must_fail unshare -m true
