# tries: run a denied program by its name, its path, and by the root of a process
# because: a rule means the image's file, under whatever name it runs
# levels: container
# execution: image
# rules: deny /bin/echo
for by in echo /usr/bin/echo /proc/self/root/bin/echo /bin/../bin/echo; do out=$(env "$by" RAN 2>/dev/null); case "$out" in *RAN*) succeeded "$by";; esac; done
killed /bin/echo RAN
