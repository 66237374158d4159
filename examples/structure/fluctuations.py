"""How far atoms move about their mean positions, by sums over frames that are exact.

Deviations from a fixed structure are rounded to multiples of 2^-20 Å, and these integers and their squares are added
up: the sums are the same in any order, whoever adds up what. Along an axis an atom may deviate by less than 1,024 Å, so
that its square has less than 62 bits. Squares are added up in two parts, their upper 30 and their lower 32 bits, which
makes room for 2^31 frames.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import himach
from himach import kernels, uncertainty

__all__ = ["Mobile", "block_sums", "fluctuation", "mean_deviation", "mean_squares"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Unit of deviations, Å.
UNIT = 2.0**-20
#: Bits of the lower part of squares.
LOW = 32
#: Sums of an atom: deviations along three axes, upper and lower parts of squares.
AXES, SUMS = 3, 5
#: B-factor in Å² of a mean square of 1 Å².
B_FACTOR = 8 / 3 * np.pi**2


@dataclass(frozen=True)
class Mobile:
    """What fluctuates: atoms or residues.

    Parameters
    ----------
    column
        What they are: ``atom`` or ``residue``.
    labels
        What each is called: indices of atoms, or names of residues.
    names
        Further columns of what each is called, of `himach.examples.groups.name_columns`.
    atoms
        int64 (n_atoms,): places of their atoms among those that are added up.
    numbers
        int64 (n_atoms,): of which of them each atom is a part.
    shares
        float64 (n_atoms,): the weight of each atom in it; those of one have a sum of 1.
    """

    column: str
    labels: list[Any]
    names: dict[str, himach.Column]
    atoms: Ints
    numbers: Ints
    shares: Floats

    def mean(self, values: Floats) -> Floats:
        """Return weighted means over the atoms of each: (..., n), of values (..., n_added) of all summed atoms."""
        atom_values = values[..., self.atoms]
        means = np.zeros((len(self.labels), *atom_values.shape[:-1]))
        np.add.at(means, self.numbers, (atom_values * self.shares).T)
        return means.T


def block_sums(positions: npt.NDArray[np.float32], frames: Ints, level: int, *moved: Any) -> Ints:
    """Return sums over frames by blocks, as `himach.uncertainty.add_blocks` does: int64 (n_blocks, 5 n + 3).

    Parameters
    ----------
    positions
        float32 (m, n, 3), Å, of m frames.
    frames
        int64 (m,): their numbers, in order.
    level
        The `himach.uncertainty.block_level` of all frames.
    *moved
        What `himach.kernels.deviation_sums` takes beside structures.

    Raises
    ------
    himach.UsageError
        If an atom is 1,024 Å or more along an axis from its place in the first frame, the fixed structure.
    """
    rows = []
    for part in np.split(np.arange(len(frames)), np.flatnonzero(np.diff(frames >> level)) + 1):
        try:
            sums = kernels.deviation_sums(positions[part[0] : part[-1] + 1], *moved)
        except himach.UsageError as error:
            if len(part) > 1:
                block_sums(positions[part], frames[part], 0, *moved)  # which names the frame
            raise himach.UsageError(
                f"in frame {frames[part[0]]} an atom is 1024 Å or more from where the first selected frame has it, and "
                "that is too far; make molecules whole, and superpose the frames (fit)"
            ) from error
        rows.append(uncertainty.block_row(frames[part[0]], sums.ravel(), frames=len(part), level=level))
    return np.array(rows)


def mean_deviation(frames: Ints, sums: Ints) -> Floats:
    """Return the mean deviation of atoms, float64 (n, 3), Å, from the frames and sums of blocks."""
    n = sums.shape[1] // SUMS
    total = sums[:, : AXES * n].sum(axis=0) * UNIT
    return np.asarray((total / frames.sum()).reshape(AXES, n).T)


def mean_squares(frames: Ints, sums: Ints) -> tuple[Floats, Floats]:
    """Return mean squared distances of atoms from their mean positions, Å²: (n,), and of each block (n_blocks, n).

    Parameters
    ----------
    frames
        int64 (n_blocks,): how many frames each block has.
    sums
        int64 (n_blocks, 5 n): of each block the sums of `block_sums`.
    """
    n = sums.shape[1] // SUMS
    mean = mean_deviation(frames, sums).T
    upper, lower = sums[:, AXES * n : (AXES + 1) * n], sums[:, (AXES + 1) * n :]
    squares = (upper * 2.0**LOW + lower) * UNIT**2
    deviations = sums[:, : AXES * n].reshape(-1, AXES, n) * UNIT
    weight = frames[:, np.newaxis]
    block_squares = squares - 2 * (deviations * mean).sum(axis=1) + weight * (mean**2).sum(axis=0)
    block_squares = np.maximum(block_squares, 0)  # rounding, where nothing moves
    return block_squares.sum(axis=0) / frames.sum(), block_squares / weight


def fluctuation(mobile: Mobile, frames: Ints, sums: Ints) -> himach.Table:
    """Return the table of fluctuations and B-factors, with bands by blocks of frames."""
    squares, block_squares = map(mobile.mean, mean_squares(frames, sums))

    def limits(value: Floats, function: Callable[[Floats], Floats], level: float) -> uncertainty.Estimate[Any]:
        band = uncertainty.of_blocks(block_squares * frames[:, np.newaxis], frames, level, of=function)
        return replace(band, value=value, low=np.maximum(band.low, 0))

    def as_b_factor(squares: Floats) -> Floats:
        return B_FACTOR * squares

    rmsf, b_factor = np.sqrt(squares), as_b_factor(squares)
    return himach.Table(
        {
            mobile.column: himach.Column(mobile.labels, role="label"),
            "rmsf": himach.Column(rmsf, "Å", estimate=lambda level: limits(rmsf, np.sqrt, level)),
            "bfactor": himach.Column(b_factor, "Å²", estimate=lambda level: limits(b_factor, as_b_factor, level)),
            **mobile.names,
        }
    )
