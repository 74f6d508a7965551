atoll create --name my-box
sed -n '/^```python$/,/^```$/p' "$REPOSITORY/docs/agents.md" | sed '1d;$d' > agent.py
atoll cp agent.py my-box:/root/agent.py
