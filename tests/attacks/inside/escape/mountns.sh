# tries: get a mount namespace of its own
# because: it wants a capability over the user namespace that root inside has not; a machine's mounts are its own
# microvm: open
must_fail unshare -m true
