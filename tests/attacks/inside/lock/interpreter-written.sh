# tries: run a script whose interpreter is a copy of a program
# because: what runs is the interpreter, and that is asked
# levels: container
# execution: image
cp /bin/echo /tmp/x
printf '#!/tmp/x\n' > /tmp/s; chmod 755 /tmp/s
killed /tmp/s RAN
