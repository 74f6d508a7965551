# tries: open the descriptors of the agent by /proc
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
secret "$(cat /proc/$AGENT/fd/* </dev/null 2>&1)"
