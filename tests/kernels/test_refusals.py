"""What kernels refuse: arrays, cutoffs, groups, weights and boxes that do not fit, each by name."""

import numpy as np
import pytest

import himach
from himach import kernels
from himach.kernels import move, unwrap, wrap

SOME, STACK, BACKBONE = np.zeros((3, 3), np.float32), np.zeros((2, 3, 3), np.float32), np.ones((5, 4, 3), np.float32)
BOX = [9, 9, 9, 90, 90, 90]
FOUR = np.zeros((4, 3), np.float32)
NO_CUTOFFS = ("3", None, [3], 1j, float("nan"))
#: What kernels that take many arguments are given, but for what a case has in place of it.
USUAL = {
    "order_parameters": {"positions": [[0, 0, 0], [0, 0, 1]], "pairs": [[0, 1]]},
    "sasa": {"positions": np.zeros((2, 3)), "radii": [1.7, 1.2]},
}


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        ("within", (SOME[0], SOME, 1), r"positions must be an array of shape \(n, 3\), not \(3,\)"),
        ("within", (SOME, None, 1), "others must be real numbers, not"),
        ("within", (SOME, SOME, -1), "cutoff must be a number, 0 or more, not -1"),
        *(
            (kernel, (SOME, SOME, cutoff), "cutoff must be a number, 0 or more, not")
            for kernel in ("within", "neighbors")
            for cutoff in NO_CUTOFFS
        ),
        *(("histogram", (SOME, None, cutoff, 5), "cutoff must be a number") for cutoff in NO_CUTOFFS),
        ("histogram", (SOME, None, 3, "5"), "bins a whole number, not 3 and '5'"),
        *(
            (kernel, arguments, "must be real numbers, not")
            for strange in (SOME.astype(kind) for kind in (complex, str, object))
            for kernel, *arguments in (
                ("neighbors", strange, None, 3),
                ("neighbors", SOME, strange, 3),
                ("within", strange, SOME, 3),
                ("rmsd", strange, SOME),
                ("centers", strange),
                ("neighbors", SOME, None, 3, np.full(6, 90).astype(strange.dtype)),
                ("centers", SOME, None, strange[0]),
            )
        ),
        ("within", (SOME, SOME, 1, [9, 9, 9]), "three lengths and three angles"),
        ("within", (SOME, SOME, 1, [9, 9, 0, 90, 90, 90]), "lengths must be positive"),
        ("within", (SOME, SOME, 1, [9, 9, 9, 20, 80, 120]), "angles must fit together"),
        ("within", (SOME, SOME * np.nan, 1), "positions must be finite"),
        ("contacts", (SOME, [0, 1], None, None, 1), r"groups must have the shape \(3,\)"),
        ("contacts", (SOME, None, None, None, 1), "groups must have the number of each position's group"),
        ("contacts", (SOME, [0, 1, 1], None, [0, 1, 1], 1), "other_groups are of others, and there are none"),
        ("contacts", (SOME, [0, -1, 1], None, None, 1), "groups are numbers from 0"),
        ("contacts", (SOME, [0, 2**40, 1], None, None, 1), "are too many"),
        ("rmsd", (SOME, SOME[:2]), "as many, and some, not 3 and 2"),
        ("rmsd", (SOME, SOME, [1, 2]), r"weights must have the shape \(3,\)"),
        ("rmsd", (SOME, SOME, [0, 0, 0]), "weights must not be negative, nor all zero"),
        ("rmsd_matrix", (STACK[0],), r"a must be an array of shape \(m, n, 3\) with n > 0, not \(3, 3\)"),
        ("rmsd_matrix", (STACK, STACK[:, :2]), "structures of as many atoms, not of 3 and 2"),
        ("rmsd_matrix", (STACK, None, -1), "cutoff must be 0 or more, not -1"),
        ("deviation_sums", (STACK, STACK[0, :2]), r"fixed must have the shape \(3, 3\)"),
        ("deviation_sums", (STACK, STACK[0], STACK[0, :2], [0, 3]), "fitted are places from 0 to 2, not 0 to 3"),
        ("deviation_sums", (STACK, STACK[0], STACK[0, :0], []), "as many, and some"),
        ("gyration", (SOME[:0],), "there are no positions"),
        ("dihedrals", (np.eye(4, 3), [[0, 1, 2, 4]]), "quadruples are places from 0 to 3, not 0 to 4"),
        ("dihedrals", (np.eye(4, 3), [[0, 1, 2, 3]], [1, 1, 1]), "box must be three lengths"),
        ("order_parameters", {"pairs": [[0, 1], [0, 2]]}, "pairs are places from 0 to 1, not 0 to 2"),
        ("order_parameters", {"kinds": [0, 1]}, r"kinds must have the shape \(1,\), one for each pair"),
        ("order_parameters", {"kinds": [3], "n_kinds": 3}, "kinds go up to 3, and n_kinds is 3"),
        ("order_parameters", {"normal": (0, 0, 0)}, "normal must be three finite numbers"),
        ("order_parameters", {"pairs": [[0, 1]] * 300 + [[1, 1]] + [[0, 1]] * 300}, "pair 300 has no direction"),
        ("order_parameters", {"positions": [[0, 0, 0], [0, np.nan, 0]]}, "pair 0 has no direction"),
        ("order_parameters", {"positions": [[0, 0, 0], [0, np.inf, 0]], "box": BOX}, "pair 0 has no direction"),
        ("sasa", {"radii": [1.7]}, "radii must have the shape"),
        ("sasa", {"radii": [1.7, -1]}, "radii must be finite and not negative, not -1"),
        ("sasa", {"probe": -0.1}, "probe must be a radius"),
        ("sasa", {"points": 10**9}, "points must be a whole number from 1 to 100,000"),
        ("sasa", {"atoms": [2]}, "atoms are places from 0 to 1"),
        ("sasa", {"positions": [[0, 0, 0], [0, 0, 1e9]]}, "so far out"),
        ("sasa", {"box": [6.1, 20, 20, 90, 90, 90]}, "the box is narrower than the 6.2 Å"),
        ("dssp", (BACKBONE[:, 0],), r"backbone must be an array of shape \(n, 4, 3\), not \(5, 3\)"),
        ("dssp", (BACKBONE, [0, 0]), r"chains must have the shape \(5,\), one for each residue, not \(2,\)"),
        ("dssp", (BACKBONE, [0, 1, 0, 1, 1]), "chains are numbers that do not fall"),
        ("dssp", (BACKBONE, None, np.zeros(4, bool)), r"prolines must be bool of the shape \(5,\)"),
        ("dssp", (np.where(np.arange(5)[:, None, None] == 4, np.nan, BACKBONE),), "positions must be finite"),
        ("histogram", (SOME, SOME, 0, 5), "cutoff and bins must be greater than 0"),
        ("histogram", (SOME, SOME, 1, 5, None, [0, 1, 2]), "go together"),
        ("histogram", (SOME, None, 1, 5, None, [0, 1, 2], [0, 1, 2]), "go together"),
        ("histogram", (SOME, SOME[:2], 1, 5, None, [0, 1, 2], [0, -1]), "numbers from 0, not -1"),
        ("centers", (SOME, [0, 1]), r"groups must have the shape \(3,\)"),
        ("centers", (SOME, [0, 1, -1]), "groups are numbers from 0, not -1"),
        ("wrap", (SOME, None), "there is no box"),
        (lambda: wrap(SOME, BOX, out=np.zeros((3, 3))), (), r"out must be a contiguous array of float32 .* \(3, 3\)"),
        (lambda: unwrap(SOME, [[0, 1]], BOX, out=np.zeros((2, 3), np.float32)), (), "out must be a contiguous array"),
        (lambda: move(SOME, [0, 0, 0], out=np.zeros((6, 3), np.float32)[::2]), (), "out must be a contiguous array"),
        (lambda: move(FOUR[:-1], [0, 0, 0], out=FOUR[1:]), (), "out lies in part where positions do"),
        (lambda: wrap(FOUR[1:], BOX, out=FOUR[:-1]), (), "out lies in part where positions do"),
        (lambda: unwrap(FOUR[1:], [[0, 1]], BOX, out=FOUR[:-1]), (), "out lies in part where positions do"),
        ("move", (SOME, [0, 0]), r"shift must have the shape \(3,\), not \(2,\)"),
        ("move", (SOME, [0, 0, 0], np.eye(4)), r"rotation must have the shape \(3, 3\), not \(4, 4\)"),
        ("unwrap", (SOME, [[0, 3]], BOX), "bonds are places from 0 to 2, not 0 to 3"),
        ("unwrap", (SOME, [0, 1], BOX), r"bonds must be an array of shape \(m, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(kernel, arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        if callable(kernel):
            kernel()
        elif isinstance(arguments, dict):
            getattr(kernels, kernel)(**{**USUAL[kernel], **arguments})
        else:
            getattr(kernels, kernel)(*arguments)
