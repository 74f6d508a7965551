# tries: end the agent from inside, to be rid of it
# dies: yes
# because: the kernel keeps signals from process 1; in gVisor the agent ends, and its own sandbox with it
for s in TERM KILL STOP SEGV ABRT; do kill -$s 1 2>/dev/null; done; sleep 0.2; held "it still answers: this verdict came through it"
