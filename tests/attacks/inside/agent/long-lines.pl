# tries: break readers by a line without end, and bytes that are no text
# because: output is bytes in bounded records; texts are cleaned where they become texts
print STDERR "\xff\xfe\0" x 200_000; held("passed on as bytes");
