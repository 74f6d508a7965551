# tries: overwrite the door
# because: it lies on a read-only mount of the host's
# levels: container
# profile: tool
line_must_fail 'cat /bin/true > /.atoll/profiles/tool'
