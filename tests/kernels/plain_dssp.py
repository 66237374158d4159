"""DSSP, slow and obvious, from the paper and the rules of DSSP 4: what himach.kernels.dssp is tested against."""

import numpy as np


def distance(a, b):
    return np.linalg.norm(a - b)


def angle(u, v):
    return np.degrees(np.arccos(np.clip(u @ v / np.sqrt((u @ u) * (v @ v)), -1, 1)))


def dihedral(a, b, c, d):
    first, second = np.cross(b - a, c - b), np.cross(c - b, d - c)
    return np.degrees(np.arctan2(distance(b, c) * (b - a) @ second, first @ second))


def bonds_of(backbone, chains, prolines):
    """Return the set of (donor, acceptor): of each donor, the two acceptors of least energy."""
    bonds = set()
    for donor in range(1, len(backbone)):
        if chains[donor] != chains[donor - 1] or prolines[donor]:
            continue
        carbon, oxygen = backbone[donor - 1, 2:]
        nitrogen = backbone[donor, 0]
        hydrogen = nitrogen + (carbon - oxygen) / distance(carbon, oxygen)
        energies = []
        for acceptor in range(len(backbone)):
            ca, c, o = backbone[acceptor, 1:]
            if acceptor in (donor, donor - 1) or distance(ca, backbone[donor, 1]) > 9:
                continue
            distances = [distance(a, b) for a in (nitrogen, hydrogen) for b in (o, c)]
            energy = 27888 * np.dot([1, -1, -1, 1], 1 / np.array(distances))
            energies.append((-9900 if min(distances) < 0.5 else max(-9900, np.round(energy)), acceptor))
        bonds.update((donor, acceptor) for energy, acceptor in sorted(energies)[:2] if energy < -500)
    return bonds


def bridges_of(bonds, chains):
    """Return the bridges: (i, j, whether they are parallel)."""
    n = len(chains)
    middles = [i for i in range(1, n - 1) if chains[i - 1] == chains[i + 1]]
    bridges = []
    for i in middles:
        for j in middles:
            if j < i + 3:
                continue
            if {(i + 1, j), (j, i - 1)} <= bonds or {(j + 1, i), (i, j - 1)} <= bonds:
                bridges.append((i, j, True))
            elif {(i + 1, j - 1), (j + 1, i - 1)} <= bonds or {(i, j), (j, i)} <= bonds:
                bridges.append((i, j, False))
    return bridges


def ladders_of(bridges, chains):
    """Return the ladders: lists of i, of j, in ascending order, and whether they are parallel; bulges are within."""
    ladders = []
    for i, j, parallel in bridges:
        for first, second, kind in ladders:
            if kind == parallel and first[-1] + 1 == i and (second[-1] + 1 if parallel else second[0] - 1) == j:
                first.append(i)
                second.insert(len(second) if parallel else 0, j)
                break
        else:
            ladders.append(([i], [j], parallel))
    k = 0
    while k < len(ladders):
        first, second, parallel = ladders[k]
        for other in ladders[k + 1 :]:
            i_step = other[0][0] - first[-1]
            j_step = other[1][0] - second[-1] if parallel else second[0] - other[1][-1]
            near = 0 < i_step < 6 and 0 <= j_step < 6 and (i_step < 3 or j_step < 3)
            if other[2] != parallel or not near:
                continue
            joined = first + other[0], (second + other[1] if parallel else other[1] + second)
            if all(len({chains[r] for r in range(min(part), max(part) + 1)}) == 1 for part in joined):
                ladders[k] = first, second, parallel = (*joined, parallel)
                ladders = [ladder for ladder in ladders if ladder is not other]
        k += 1
    return ladders


def dssp(backbone, chains=None, prolines=None):
    """Return the states as text."""
    backbone = np.asarray(backbone, dtype=np.float32).astype(np.float64)
    n = len(backbone)
    chains = np.zeros(n, int) if chains is None else chains
    bonds = bonds_of(backbone, chains, np.zeros(n, bool) if prolines is None else prolines)
    states = ["-"] * n
    for first, second, _ in ladders_of(bridges_of(bonds, chains), chains):
        for part in (first, second):
            for i in range(part[0], part[-1] + 1):
                states[i] = "E" if len(first) > 1 or states[i] == "E" else "B"
    turns = {
        (i, length)
        for donor, i in bonds
        for length in (3, 4, 5)
        if donor - i == length and len(set(chains[i : donor + 1])) == 1
    }
    for length, state, over in ((4, "H", "-BEGITSPH"), (3, "G", "-G"), (5, "I", "-IH")):
        for i in range(1, n - length):
            inside = range(i, i + length)
            if {(i - 1, length), (i, length)} <= turns and all(states[k] in over for k in inside):
                for k in inside:
                    states[k] = state
    atoms = {i: backbone[i - 1 : i + 2] for i in range(1, n - 1) if chains[i - 1] == chains[i + 1]}
    polyproline = set()
    for i, (before, here, after) in atoms.items():
        phi, psi = dihedral(before[2], *here[:3]), dihedral(*here[:3], after[0])
        if -104 <= phi <= -46 and 116 <= psi <= 174:
            polyproline.add(i)
    for i in range(n):
        if states[i] == "-" and any((i - k, length) in turns for length in (3, 4, 5) for k in range(1, length)):
            states[i] = "T"
    alpha = backbone[:, 1]
    for i in range(2, n - 2):
        bent = angle(alpha[i] - alpha[i - 2], alpha[i + 2] - alpha[i]) > 70
        if states[i] == "-" and chains[i - 2] == chains[i + 2] and bent:
            states[i] = "S"
    for i in range(n):
        if {i, i + 1, i + 2} <= polyproline:
            states[i : i + 3] = ["P" if state == "-" else state for state in states[i : i + 3]]
    return "".join(states)
