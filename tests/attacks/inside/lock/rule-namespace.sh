# tries: run a denied program from a user namespace of its own, with another root
# because: a rule means the image's file, under whatever name it runs
# levels: container
# execution: any
# rules: deny /bin/echo
out=$(unshare --user --map-root-user --root=/ /bin/echo RAN 2>&1); code=$?
case "$out" in *unshare*) refused "$out";; esac
judge $code "$out"
