# tries: read a hidden file by links
# because: Landlock knows the file wherever it is reached
# levels: container
# profile: agent
ln -s /opt/agent /tmp/a; ln /opt/agent/secret /tmp/b 2>/tmp/why; secret "$(cat /tmp/a/secret /tmp/b /tmp/why 2>&1)"
