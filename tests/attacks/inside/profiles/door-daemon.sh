# tries: go through the door in another session
# because: what is forked is in the same profile, whatever session it makes
# levels: container
# profile: tool
killed setsid -w sh -c '/.atoll/profiles/agent -- echo RAN; exit $?'
