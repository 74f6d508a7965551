# What every page's session has besides the program. Sourced by the script that a page becomes.

# Who runs the tests is root already.
sudo() { "$@"; }

# An answer that refuses is an error.
curl() { command curl --fail-with-body "$@"; }

# Commands that do not end by themselves run until they have written something (`follow`), or until they are ready
# (`serve`); a shell is left with the keys that detach from it.
atoll() {
  case "${1:-} $*" in
    "serve "*) serve "${@:2}" ;;
    "setup setup microvm")
      # From the package that is here; the one that a host fetches by itself comes from Debian.
      command atoll setup microvm --package "$(ls /var/cache/atoll-tests/linux-image-*.deb | tail -n 1)" \
        --microvm-dir /var/cache/atoll-tests/tested-machines
      ;;
    "secret secret set "*) ask "$@" ;;
    "shell "*) python3 "$DOCS/attended.py" terminal atoll "$@" ;;
    "mcp "* | "tunnel "* | *" -f" | *" -f "*) python3 "$DOCS/attended.py" follow atoll "$@" ;;
    *) command atoll "$@" ;;
  esac
}

# A secret's value is asked for on a terminal, unless the page gives none or it comes from standard input.
ask() {
  case " $* " in
    *" --keep-value "*) command atoll "$@" ;;
    *) python3 "$DOCS/attended.py" answer atoll "$@" ;;
  esac
}

# A server beside the page's own: on a port of loopback, with a directory that goes away with it.
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
