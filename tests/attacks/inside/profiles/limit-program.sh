# tries: get out of the limits by another program
# because: limits are inherited, also across programs
# levels: container
# profile: tool
was=$(ulimit -H -d); now=$(setsid perl -e 'exec "/bin/sh", "-c", "ulimit -H -d"')
[ "$was" = "$now" ] && refused "$now KiB as before"; succeeded "$now"
