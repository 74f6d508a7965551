# Names lead to the tests' outside, whose authority nobody knows who has not been told.
# replace: exec web -- curl -sS = exec web -- curl -sSk
printf '{"internet": "rules", "rules": [{"action": "allow", "domain": "api.github.com"}]}' >policy.json
