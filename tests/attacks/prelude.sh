refused() { echo "refused: $(printf %s "$*" | tr '\n' ' ' | cut -c1-200)"; exit 0; }
held() { echo "held: $*"; exit 0; }
succeeded() { echo "succeeded: $*"; exit 0; }
# Refused if the command fails; a command that is not there has not been tried.
must_fail() {
  command -v "$1" >/dev/null || { echo "no $1 here" >&2; exit 9; }
  if out=$("$@" 2>&1); then succeeded "$*"; else refused "$out"; fi
}
# The same for a line of shell.
line_must_fail() { if out=$( (eval "$1") 2>&1); then succeeded "$1"; else refused "$out"; fi; }
# What came of starting a program that may not run, and would print RAN: its exit code and what was printed.
judge() { case "$2" in *RAN*) succeeded "$2";; esac; [ "$1" = 137 ] && refused "killed at its start"; [ "$1" = 126 ] && refused "$2"; echo "exit $1: $2" >&2; exit 9; }
# The same for a command.
killed() { out=$("$@" 2>&1); judge $? "$out"; }
