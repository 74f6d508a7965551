# tries: remove the door
# because: it lies on a read-only mount of the host's
# levels: container
# profile: tool
must_fail rm -f /.atoll/profiles/tool
