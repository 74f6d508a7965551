# tries: reach what only the agent may, in a cgroup named like an exec
# because: an exec is told to the kernel by the server, before the agent of the sandbox forks it
# levels: container
# profile: agent
ask_file
for dir in /sys/fs/cgroup /sys/fs/cgroup/unified; do mkdir "$dir/exec-agent" 2>/dev/null && echo $$ > "$dir/exec-agent/cgroup.procs"; done
asks perl /tmp/ask.pl
