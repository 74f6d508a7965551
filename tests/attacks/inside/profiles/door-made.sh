# tries: make the door of a profile that there is not
# because: the doors lie on a read-only mount
# levels: container
# profile: tool
must_fail cp /bin/sh /.atoll/profiles/other
