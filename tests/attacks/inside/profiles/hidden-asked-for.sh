# tries: read a hidden file from an exec in the profile of tools
# because: an exec enters the domain of its profile before its program begins
# levels: container
# profile: tool
mkdir -p /opt/agent 2>&1; must_fail touch /opt/agent/new
