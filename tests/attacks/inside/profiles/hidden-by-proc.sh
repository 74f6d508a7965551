# tries: read a hidden file by the root and the directory of the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
secret "$(cat /proc/$AGENT/root/opt/agent/secret /proc/$AGENT/cwd/secret /proc/self/root/opt/agent/secret 2>&1)"
