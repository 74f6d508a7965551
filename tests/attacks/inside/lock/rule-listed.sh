# tries: run a program of the image that no rule allows
# because: with `listed` only what a rule allows runs
# levels: container
# execution: listed
# rules: allow /bin/sh, allow /usr/bin/head, allow /usr/bin/tr, allow /usr/bin/cut
killed /bin/echo RAN
