# tries: get out of the limit of processes as another user
# because: a limit that was lowered is raised by nobody without the host's rights
# levels: container
# profile: tool
was=$(ulimit -H -p); now=$(perl -e '$( = $) = 1000; $< = $> = 1000; exec "/bin/sh", "-c", "ulimit -H -p; ulimit -p unlimited"' 2>/dev/null)
[ "$was" = unlimited ] && exit 9; [ "$was" = "$now" ] && refused "$now as before"; succeeded "$now"
