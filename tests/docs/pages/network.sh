# Names lead to the tests' outside, whose authority nobody knows who has not been told.
# replace: exec web -- curl -sS = exec web -- curl -sSk
