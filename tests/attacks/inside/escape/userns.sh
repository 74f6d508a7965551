# tries: become root in a user namespace, the beginning of most kernel exploits
# because: clone and unshare with such flags are refused; in gVisor and a machine it is another kernel's
# gvisor: open
# microvm: open
must_fail unshare -U true
