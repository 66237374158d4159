"""Parts of a run, alone: the shuffle, the division of frames among ranks, the protocol, the kernels, intervals."""
