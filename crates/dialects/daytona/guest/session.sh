# Runs one command of a session: session.sh DIRECTORY COMMAND, in bash, or in a plain shell where there is none.
#
# Each command has a shell of its own. It takes over the state that the last one left (working directory, variables,
# functions, aliases, options, umask) and leaves the same, however it ends. A command that ends its shell ends nothing
# else.
__atoll_save() {
  [ -z "${__atoll_saved-}" ] || return 0
  __atoll_saved=1
  # A substitution has options of its own as to errors.
  __atoll_flags=$-
  __atoll_options=$(set +o)
  set +eux
  {
    printf 'cd -- "%s"\n' "$(pwd | sed 's/[\\"$`]/\\&/g')"
    umask | sed 's/^/umask /'
    unset BASH_EXECUTION_STRING
    if [ -n "${BASH_VERSION-}" ]; then
      declare -p
      declare -f
      alias -p
      shopt -p
    else
      export -p
    fi
  } >"$__atoll_dir/state.$$" && mv -f "$__atoll_dir/state.$$" "$__atoll_dir/state"
  {
    printf '%s\n' "$__atoll_options"
    case $__atoll_flags in *e*) echo 'set -e' ;; esac
  } >"$__atoll_dir/options.$$" && mv -f "$__atoll_dir/options.$$" "$__atoll_dir/options"
}
if [ -f "$1/state" ]; then
  . "$1/state" 2>/dev/null
fi
__atoll_saved=
__atoll_dir=$1
__atoll_run=$2
shift 2
trap '{ __atoll_exit=$?; __atoll_save; } 2>/dev/null; exit $__atoll_exit' EXIT
if [ -f "$__atoll_dir/options" ]; then
  . "$__atoll_dir/options" 2>/dev/null
fi
eval "$__atoll_run"
{ __atoll_exit=$?; __atoll_save; } 2>/dev/null
exit $__atoll_exit
