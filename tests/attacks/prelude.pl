use strict; use warnings; use Errno (); use POSIX ();
sub verdict { my ($word, @why) = @_; my $why = "@why"; $why =~ s/\s+/ /g; print "\n$word: ", substr($why, 0, 200), "\n"; exit 0 }
sub refused { verdict("refused", @_) } sub held { verdict("held", @_) } sub succeeded { verdict("succeeded", @_) }
# A system call by its number (x86-64): its result, or -1 with $!.
sub call { my ($number, @arguments) = @_; return syscall($number, @arguments) }
sub must_fail { my ($what, $number, @arguments) = @_; $! = 0; my $got = call($number, @arguments);
  if ($got == -1) { refused("$what: $!") } succeeded("$what: $got") }
use IO::Handle;
# Judges a child process that starts a program which may not run. The program would print RAN.
sub forked { my ($start) = @_; pipe(my $read, my $write) or die; my $pid = fork // die;
  if (!$pid) { close $read; open(STDOUT, ">&", $write); open(STDERR, ">&", $write); $start->(); print "not started: $!\n"; STDOUT->flush; POSIX::_exit(3) }
  close $write; local $/; my $out = <$read> // ""; waitpid $pid, 0; my $status = $?;
  if ($out =~ /RAN/) { succeeded($out) } if (($status & 127) == 9) { refused("killed at its start") }
  if ($out =~ /not started/ && $out !~ /busy/) { refused($out) } die "status $status: $out" }
sub killed { my @command = @_; forked(sub { exec { $command[0] } @command }) }
# Starts the file that a descriptor is open on (execveat with an empty path).
sub by_descriptor { my ($fd) = @_; my ($empty, $name, $word) = ("\0", "x\0", "RAN\0");
  my $argv = pack("PPQ", $name, $word, 0); my $env = pack("Q", 0);
  forked(sub { call(322, $fd, $empty, $argv, $env, 0x1000) }) }
# Judges a search for the agent's secret.
sub secret { my ($what, $found) = @_; succeeded($what) if defined $found && $found =~ /agent-secret/; refused("$what: $!") }
