# tries: move the hidden directory to where it is not hidden
# because: nothing that leads to a hidden path can be changed
# levels: container
# profile: agent
mv /opt/agent /tmp/moved 2>/tmp/why; mv /opt /elsewhere 2>>/tmp/why; secret "$(cat /tmp/moved/secret /elsewhere/agent/secret /tmp/why 2>&1)"
