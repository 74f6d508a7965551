# tries: read the environment of the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
secret "$(cat /proc/$AGENT/environ /proc/$AGENT/task/*/environ 2>&1 | tr '\0' ' ')"
