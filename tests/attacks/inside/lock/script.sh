# tries: run a script that was written inside
# because: by design: an interpreter of the image may run, and a script is its input; take it out of the image if it may not
# levels: container
# execution: image
# must: open
printf '#!/bin/sh\necho RAN\n' > /tmp/s; chmod 755 /tmp/s
killed /tmp/s
