# tries: run a script whose interpreter is a script, whose interpreter is a copy of a program
# because: what runs at last is asked
# levels: container
# execution: image
cp /bin/echo /tmp/x
printf '#!/tmp/x\n' > /tmp/a; printf '#!/tmp/a\n' > /tmp/b; chmod 755 /tmp/a /tmp/b
killed /tmp/b RAN
