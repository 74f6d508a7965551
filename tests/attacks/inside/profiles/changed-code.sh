# tries: change what the agent will run
# because: read_only paths cannot be changed, nor what leads to them
# levels: container
# profile: agent
(echo x >> /opt/own/code) 2>/tmp/why && succeeded appended; rm -f /opt/own/code 2>>/tmp/why && succeeded removed; mv /opt/own /opt/other 2>>/tmp/why && succeeded moved; chmod 777 /opt/own/code 2>>/tmp/why; (: > /opt/own/code) 2>>/tmp/why && succeeded cut; refused "$(cat /tmp/why)"
