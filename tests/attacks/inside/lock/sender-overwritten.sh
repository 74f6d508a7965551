# tries: reach what only one program may, by writing another into its file
# because: a file with a copy above the layers is not the image's
# levels: container
# from: /usr/bin/perl
# image: layers
ask_file
cp /usr/bin/perl /tmp/save; cat /tmp/save > /usr/bin/perl
asks /usr/bin/perl /tmp/ask.pl
