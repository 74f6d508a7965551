# Names resolve to the tests' own servers outside, whose certificate authority the sandbox does not trust.
# replace: exec web -- curl -sS = exec web -- curl -sSk
printf '{"internet": "rules", "rules": [{"action": "allow", "domain": "api.github.com"}]}' >policy.json
