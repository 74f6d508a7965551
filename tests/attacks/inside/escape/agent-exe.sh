# tries: overwrite the program of the agent on the host through /proc/1/exe (CVE-2019-5736)
# because: the program is a sealed file in memory, or of the sandbox's own
( echo x > /proc/1/exe ) 2>/dev/null && [ "$(head -c 1 /proc/1/exe 2>/dev/null)" = x ] && succeeded "/proc/1/exe"; refused "it is not written"
