# serve: --microvm-dir /var/cache/atoll-tests/tested-machines
atoll image pull debian
atoll create --name my-box --image debian --isolation microvm
