# tries: go through the door in a fork of a fork
# because: what is forked is in the same profile
# levels: container
# profile: tool
forked(sub { exit 0 if fork; exec "/.atoll/profiles/agent", "--", "/bin/echo", "RAN" });
