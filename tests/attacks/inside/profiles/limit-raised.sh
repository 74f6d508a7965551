# tries: raise the limit of memory of its profile
# because: a limit that was lowered is raised by nobody without the host's rights
# levels: container
# profile: tool
[ "$(ulimit -H -d)" = unlimited ] && { echo "there is no limit" >&2; exit 9; }
line_must_fail 'ulimit -d unlimited'
