# tries: name a denied program as the interpreter of a script
# because: what runs is the interpreter, and that is asked
# levels: container
# execution: any
# rules: deny /bin/echo
printf '#!/bin/echo RAN\n' > /tmp/s; chmod 755 /tmp/s
killed /tmp/s
