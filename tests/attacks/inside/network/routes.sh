# tries: route to the host by a table of its own
# because: it wants a capability over the network namespace; a machine has one peer, the gateway
# microvm: open
command -v ip >/dev/null || refused "there is no ip here, nor a way in netlink (new-interface)"
line_must_fail "ip route add 1.1.1.1 dev lo || ip addr add 192.0.2.1/32 dev lo"
