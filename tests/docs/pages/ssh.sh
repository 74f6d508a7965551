# replace: -p 4600 = -p $port
# replace: -P 4600 = -P $port
atoll create --name web
mkdir -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
# OpenSSH takes the home of its user from /etc/passwd, which is not the page's.
ours=(-i "$HOME/.ssh/id_ed25519" -o IdentitiesOnly=yes -o StrictHostKeyChecking=accept-new
  -o "UserKnownHostsFile=$HOME/.ssh/known_hosts")
ssh() { command ssh "${ours[@]}" "$@"; }
sftp() { command sftp "${ours[@]}" "$@"; }
