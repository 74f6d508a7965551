# tries: learn the host's name
# because: the name is the sandbox's own
[ "$(hostname)" != "$(cat /proc/sys/kernel/hostname)" ] && succeeded "two names"; case "$(hostname)" in sb*|atoll*|*-*|*) held "its own: $(hostname)";; esac
