for name in ANTHROPIC GIT_TOKEN MAPS GITHUB; do echo "a value" | command atoll secret set $name --any-host; done
