"""The asynchronous client. The other one is made from it by sdk/generate."""
