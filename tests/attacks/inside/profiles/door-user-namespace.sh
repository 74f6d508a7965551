# tries: go through the door in a user namespace of its own
# because: the kernel of the host is asked whatever namespace it is
# levels: container
# profile: tool
out=$(unshare -U true 2>&1) || refused "$out"
killed unshare -U -r /.atoll/profiles/agent -- echo RAN
