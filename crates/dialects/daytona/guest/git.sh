# Runs git: git.sh INPUT ARGUMENT…
#
# INPUT is `none`; `credentials`, when the standard input has a user and a password, each on a line of its own, for any
# login that git asks for; or `pass`, when git reads the input itself. They are neither arguments nor stored variables
# of the command.
input=$1
shift
command -v git >/dev/null 2>&1 || { echo 'this sandbox has no git' >&2; exit 127; }
case $input in
  credentials)
    IFS= read -r DAYTONA_GIT_USER
    IFS= read -r DAYTONA_GIT_PASSWORD
    export DAYTONA_GIT_USER DAYTONA_GIT_PASSWORD
    # shellcheck disable=SC2016
    exec git -c credential.helper= \
      -c 'credential.helper=!f() { [ "$1" = get ] && printf "username=%s\npassword=%s\n" "$DAYTONA_GIT_USER" "$DAYTONA_GIT_PASSWORD"; }; f' \
      "$@" </dev/null
    ;;
  pass) exec git "$@" ;;
  *) exec git "$@" </dev/null ;;
esac
