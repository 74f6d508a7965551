# tries: ask for the agent's profile with atoll-run
# because: the kernel of the host kills whoever executes the door of a profile that its own may not ask for
# levels: container
# profile: tool
killed /.atoll/bin/atoll-run --profile agent -- sh -c 'echo RAN'
