# tries: find and signal processes of the host
# because: the PID namespace is its own
my @known = grep { kill 0, $_ } 2 .. 4000; my @mine = map { /(\d+)$/ } glob "/proc/[0-9]*";
my %mine = map { $_ => 1 } @mine, map { m{task/(\d+)} } glob "/proc/[0-9]*/task/*"; my @foreign = grep { !$mine{$_} && !-e "/proc/$_" } @known;
succeeded("@foreign") if @foreign > 3; held("every process is its own");
