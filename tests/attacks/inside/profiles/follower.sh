# tries: end the process that follows the agent, so that nobody confines its tools
# because: it is outside of every tool's domain
# levels: container
# profile: agent
for p in /proc/[0-9]*; do case "$(cat $p/comm 2>/dev/null)" in atoll-follow) f=${p#/proc/};; esac; done
[ -n "$f" ] || { echo "nobody follows" >&2; exit 9; }
must_fail kill -KILL $f
