"""The frame store on a node's disk: the boundary to the C library, quota and eviction, verification."""
