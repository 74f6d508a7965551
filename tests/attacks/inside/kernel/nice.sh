# tries: run before everybody else
# because: negative niceness wants a capability that counts on the host; gVisor and a machine share out among their own processes
# gvisor: open
# microvm: open
line_must_fail "nice -n -10 sh -c 'test \$(nice) -lt 0'"
