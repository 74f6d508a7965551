# tries: give the door another name
# because: it lies on a read-only mount of its own
# levels: container
# profile: tool
must_fail ln /.atoll/profiles/agent /tmp/door
