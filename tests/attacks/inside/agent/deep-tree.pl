# tries: overflow a stack of the agent or the server by a tree of 4,000 directories, one in the other
# because: trees are walked without recursion
my $n = 0; chdir "/tmp"; while ($n < 4000 && mkdir "d") { chdir "d" or last; $n++ } held("$n deep, and deleted with it");
