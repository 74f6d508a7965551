# replace: ky06gz… = $colleague
atoll create --name web
colleague=$(atoll key create colleague --scope exec --json | jq -r .key.id)
