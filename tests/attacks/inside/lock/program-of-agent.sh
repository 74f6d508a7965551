# tries: run the program of the agent once more
# because: it is in memory, and only its first start is the agent's
# levels: container
# execution: image
killed /proc/1/exe
