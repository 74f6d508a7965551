use strict; use warnings; use Errno ();
sub verdict { my ($word, @why) = @_; my $why = "@why"; $why =~ s/\s+/ /g; print "\n$word: ", substr($why, 0, 200), "\n"; exit 0 }
sub refused { verdict("refused", @_) } sub held { verdict("held", @_) } sub succeeded { verdict("succeeded", @_) }
# A system call by its number (x86-64): its result, or -1 with $!.
sub call { my ($number, @arguments) = @_; return syscall($number, @arguments) }
sub must_fail { my ($what, $number, @arguments) = @_; $! = 0; my $got = call($number, @arguments);
  if ($got == -1) { refused("$what: $!") } succeeded("$what: $got") }
