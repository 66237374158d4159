"""The server of a node's store: starting and stopping it, authentication, and its clients."""
