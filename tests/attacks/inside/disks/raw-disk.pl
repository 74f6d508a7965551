# tries: read what others wrote, off the disk below its file system
# because: a machine's disk is a file of its own, which is zeros wherever nobody has written
# levels: microvm
my ($total, $used) = (split " ", (grep { m{ /$} } `df -k /`)[0])[1, 2]; my $share = $used / $total; my $disks = 0;
for my $block (glob "/sys/block/vd*") {
  open my $f, "<", "$block/ro" or die; next if <$f> != 0; open $f, "<", "$block/size" or die; my $pages = int(<$f> / 8);
  my ($name) = $block =~ m{([^/]+)$}; $disks++; open my $disk, "<", "/dev/$name" or die "$name: $!"; binmode $disk; my $full = 0;
  # What is read is the disk, if its file system is there.
  sysread($disk, my $first, 4096) == 4096 or die "$!"; die "$name is none" if substr($first, 0x438, 2) ne "\x53\xef";
  # A sample: the file system's own takes a small part of it.
  for (1 .. 2000) { sysseek $disk, 4096 * int(rand $pages), 0 or die; sysread($disk, my $page, 4096) == 4096 or die "$!"; $full++ if $page =~ /[^\0]/ }
  succeeded("$full of 2000 pages of $name hold something") if $full / 2000 > $share + 0.05;
}
die "no disk" if !$disks; held("zeros");
