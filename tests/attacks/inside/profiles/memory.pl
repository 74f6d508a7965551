# tries: read the memory of the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
open(my $m, "<", "/proc/$ENV{AGENT}/mem") or refused("mem: $!"); open(my $maps, "<", "/proc/$ENV{AGENT}/maps") or refused("maps: $!"); my $all = ""; while (<$maps>) { my ($from, $to) = map { hex } /^(\w+)-(\w+) r/ or next; next if $to - $from > 1 << 26; sysseek($m, $from, 0) or next; sysread($m, my $part, $to - $from); $all .= $part // "" } secret("memory", $all);
