# replace: -p 4600 = -p $port
# replace: -P 4600 = -P $port
atoll create --name web
mkdir -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
# OpenSSH takes the home directory from /etc/passwd, not from the page's HOME.
ours=(-i "$HOME/.ssh/id_ed25519" -o IdentitiesOnly=yes -o StrictHostKeyChecking=accept-new
  -o "UserKnownHostsFile=$HOME/.ssh/known_hosts")
ssh() { command ssh "${ours[@]}" "$@"; }
sftp() { command sftp "${ours[@]}" "$@"; }
