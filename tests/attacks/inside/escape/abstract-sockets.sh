# tries: find abstract sockets of the host (CVE-2020-15257, containerd-shim)
# because: the network namespace is its own, and abstract sockets are in it
grep -aq "@" /proc/net/unix 2>/dev/null && grep -a "@" /proc/net/unix | grep -aqv "atoll-guest" && succeeded "$(grep -a '@' /proc/net/unix | head -n 2)"; held "none"
