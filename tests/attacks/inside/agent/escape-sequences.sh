# tries: make a terminal of the operator do something, by control sequences in names and output
# because: output is passed on as it is to who asked for it; names in errors are cleaned
# must: held
printf '\033]0;owned\007\033[2J' >&2; held "for the one who ran it, as with any terminal"
