# tries: go through the door to the agent's profile
# because: the kernel of the host kills whoever executes the door of a profile that its own may not ask for
# levels: container
# profile: tool
ask_file
killed /.atoll/profiles/agent -- sh -c 'echo RAN'
