atoll image pull python:3.12
