# Functions for every page's session. The script made from a page sources this.

# The tests run as root already.
sudo() { "$@"; }

# curl fails when the server refuses a request.
curl() { command curl --fail-with-body "$@"; }

# Commands that do not end by themselves run until they have written something (`follow`), or until they are ready
# (`serve`); a shell is left with the keys that detach from it.
atoll() {
  case "${1:-} $*" in
    "serve "*) serve "${@:2}" ;;
    "setup setup microvm")
      # Uses the package on this machine, where `atoll setup microvm` would fetch one from Debian.
      command atoll setup microvm --package "$(ls /var/cache/atoll-tests/linux-image-*.deb | tail -n 1)" \
        --microvm-dir /var/cache/atoll-tests/tested-machines
      ;;
    "secret secret set "*) ask "$@" ;;
    "shell "*) python3 "$DOCS/attended.py" terminal atoll "$@" ;;
    "mcp "* | "tunnel "* | *" -f" | *" -f "*) python3 "$DOCS/attended.py" follow atoll "$@" ;;
    *) command atoll "$@" ;;
  esac
}

# `atoll secret set` asks for the value on a terminal, unless the page keeps the old value.
ask() {
  case " $* " in
    *" --keep-value "*) command atoll "$@" ;;
    *) python3 "$DOCS/attended.py" answer atoll "$@" ;;
  esac
}

# Starts a second server: on a port of loopback, with a directory that it removes at its end.
serve() {
  local words=()
  while [ $# -gt 0 ]; do
    case $1 in
      --listen | --data-dir) shift ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  python3 "$DOCS/attended.py" follow atoll serve --listen 127.0.0.1:0 --ephemeral --ready-json "${words[@]}"
}
