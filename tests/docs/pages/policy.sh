# The policy that the page has at its beginning, without what no image here has.
printf '{"programs": "image", "rules": [{"action": "deny", "path": "/usr/bin/curl", "message": "ask the operator"}]}' >policy.json
