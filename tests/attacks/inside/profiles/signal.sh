# tries: send the agent a signal
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
must_fail kill -USR1 $AGENT
