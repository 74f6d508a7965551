# tries: have the kernel restart the host
# because: /proc/sysrq-trigger is masked; a machine's is its own
# microvm: refused or held
if [ "$LEVEL" = microvm ]; then held "its own kernel's, which is not tried"; fi
line_must_fail "echo h > /proc/sysrq-trigger"
