# tries: read a file of the agent's hidden directory
# because: Landlock knows the file wherever it is reached
# levels: container
# profile: agent
secret "$(cat /opt/agent/secret 2>&1)"
