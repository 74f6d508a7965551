# tries: ask for a profile by a name that leads elsewhere
# because: names have no slash, and a copy is no door
# levels: container
# profile: tool
cp /bin/sh /tmp/agent
must_fail /.atoll/bin/atoll-run --profile ../../tmp/agent -- -c 'echo RAN'
