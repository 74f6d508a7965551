# tries: end the agent from inside, to be rid of it
# dies: yes
# because: process 1 takes no signal from inside that it did not ask for
for s in TERM KILL STOP SEGV ABRT; do kill -$s 1 2>/dev/null; done; sleep 0.2; held "it still answers: this verdict came through it"
