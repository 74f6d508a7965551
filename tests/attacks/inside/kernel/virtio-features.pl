# tries: find devices and features of the monitor that had faults: virtio-gpu, virtio-crypto (CVE-2024-3446), receive-side scaling (CVE-2024-6505)
# because: a machine has a network card, two disks and a channel to its agent, and the card has nothing that needs such code
# levels: microvm
my %kinds = (1 => "network", 2 => "disk", 3 => "channel"); my $found = 0;
sub text { open my $f, "<", $_[0] or die "$_[0]: $!"; my $text = <$f>; chomp $text; $text }
for my $device (glob "/sys/bus/virtio/devices/*") { my $kind = hex text("$device/device"); $found++;
  succeeded("a device of kind $kind") if !$kinds{$kind};
  my @features = split //, text("$device/features"); @features == 64 or die "features"; $kind == 1 && $features[$_] and succeeded("feature $_ of the card") for 57, 60; }
$found or die "no device"; held("$found devices");
