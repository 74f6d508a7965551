# serve: --microvm-dir /var/cache/atoll-tests/tested-machines
# replace: sn06h0c7… = $old
# replace: fork work -n 10 --memory = fork machine -n 10 --memory
# replace: create work --memory = create machine --memory
atoll image pull debian
atoll create --name machine --image debian --isolation microvm
atoll create --name other
old=$(atoll snapshot create other -t old --json | jq -r .id)
