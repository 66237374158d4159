import numpy.typing as npt

def rmsd(
    positions: npt.ArrayLike,
    reference: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    superposition: bool = True,
) -> float: ...
