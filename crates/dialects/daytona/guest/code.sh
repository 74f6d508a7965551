# Runs a program that stands on the standard input: code.sh LANGUAGE CHARTS ARGUMENT…
# Both streams go through one pipe, so that the text that the client gets has one order. The other pipe is for charts,
# which CHARTS, a program in Python, reports; if CHARTS is empty, there are none.
language=$1
charts=$2
shift 2
if [ -n "$charts" ]; then exec 3>&2; fi
exec 2>&1
has() { command -v "$1" >/dev/null 2>&1; }
case $language in
  python)
    for python in python3 python; do
      if has "$python"; then
        if [ -n "$charts" ]; then exec "$python" -u -c "$charts" 3 "$@"; fi
        exec "$python" -u - "$@"
      fi
    done
    ;;
  javascript)
    if has node; then exec node - "$@"; fi
    ;;
  typescript)
    # These programs read a file: the input is kept as one while it runs.
    dir=$(mktemp -d) || exit 1
    trap 'rm -rf "$dir"' EXIT
    cat >"$dir/main.ts"
    if has tsx; then tsx "$dir/main.ts" "$@"; exit; fi
    if has ts-node; then ts-node --transpile-only "$dir/main.ts" "$@"; exit; fi
    # Since 22.6 node removes the types by itself.
    if has node && node --help 2>/dev/null | grep -q -- --experimental-strip-types; then
      node --no-warnings --experimental-strip-types "$dir/main.ts" "$@"
      exit
    fi
    if has deno; then deno run --quiet --allow-all "$dir/main.ts" "$@"; exit; fi
    if has bun; then bun "$dir/main.ts" "$@"; exit; fi
    ;;
esac
echo "this sandbox has nothing that runs $language" >&2
exit 127
