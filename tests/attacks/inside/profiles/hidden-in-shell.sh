# tries: read a hidden file from a shell that a shell started
# because: a domain is inherited, and entered for good
# levels: container
# profile: agent
secret "$(bash -c "sh -c 'setsid -w cat /opt/agent/secret'" 2>&1)"
