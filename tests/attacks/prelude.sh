refused() { echo "refused: $(printf %s "$*" | tr '\n' ' ' | cut -c1-200)"; exit 0; }
held() { echo "held: $*"; exit 0; }
succeeded() { echo "succeeded: $*"; exit 0; }
# Refused if the command fails. If the command is not installed the attack was not tried.
must_fail() {
  command -v "$1" >/dev/null || { echo "no $1 here" >&2; exit 9; }
  if out=$("$@" 2>&1); then succeeded "$*"; else refused "$out"; fi
}
# Like must_fail, for a line of shell.
line_must_fail() { if out=$( (eval "$1") 2>&1); then succeeded "$1"; else refused "$out"; fi; }
# Judges the start of a program that may not run, by its exit code and output. The program would print RAN.
judge() { case "$2" in *RAN*) succeeded "$2";; esac; [ "$1" = 137 ] && refused "killed at its start"; [ "$1" = 126 ] && refused "$2"; echo "exit $1: $2" >&2; exit 9; }
# Runs a command and judges it so.
killed() { out=$("$@" 2>&1); judge $? "$out"; }
# Writes a script that asks the gateway's proxy for an address that only /usr/bin/perl may reach, over a new socket or
# one that it is given. The script prints RAN if the proxy connects it.
ask_file() { cat > /tmp/ask.pl <<'END'
use Socket; my $s;
if (@ARGV && $ARGV[0] =~ /^\d+$/) { open($s, "+<&=", $ARGV[0]) or die "no socket: $!" } else { socket($s, PF_INET, SOCK_STREAM, 0) or die }
unless ($ENV{CONNECTED}) { connect($s, pack_sockaddr_in(3128, inet_aton("10.0.2.2"))) or die "connect: $!" }
syswrite($s, "CONNECT 93.184.216.34:443 HTTP/1.1\r\nHost: 93.184.216.34:443\r\n\r\n"); sysread($s, my $answer, 4096);
print $answer =~ m{^HTTP/1.1 200} ? "RAN\n" : $answer;
END
cp /usr/bin/perl /tmp/copy; }
# Runs a command that asks the proxy, and judges it.
asks() { out=$("$@" 2>&1); case "$out" in *RAN*) succeeded "$out";; *' 403 '*) refused "$out";; esac; echo "$out" >&2; exit 9; }
# Judges a search for the agent's secret.
secret() { case "$*" in *agent-secret*) succeeded "$*";; esac; refused "$*"; }
