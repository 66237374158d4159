"""What built-in analyses compute, by MDTraj or MDAnalysis: one question by one process, or the archive's set by more.

Arguments: tool question topology trajectory workers answer. Prints the seconds of reading and computing, without
imports and reading the topology. Trajectories hold the protein alone, so that a tool reads no more than it needs. The
set is what the archive MDposit runs over each simulation, over as many frames as it allows: 5,000 for deviations and
the radius of gyration, 2,000 for the principal components, 100 for surfaces, and here 1,000 where it is not told.
"""

import sys
import time
import warnings
from multiprocessing import get_context

import numpy as np

#: Question -> tool and frames, of the archive's set.
ARCHIVE = {
    "sasa": ("MDTraj", 100),
    "hydrogen-bonds": ("MDAnalysis", 1000),
    "pca": ("MDAnalysis", 2000),
    "rmsd": ("MDTraj", 5000),
    "rg": ("MDTraj", 5000),
    "rmsf": ("MDTraj", 10_000),
    "dssp": ("MDTraj", 1000),
    "contacts": ("MDTraj", 1000),
}
CUTOFF = 4.5  # Å, of contacts


def mdtraj_answer(question, topology, path, most=None):
    import mdtraj

    top = mdtraj.load_topology(topology)
    begun = time.perf_counter()
    trajectory = mdtraj.load(path, top=top)
    trajectory = trajectory[:: max(1, len(trajectory) // most)] if most else trajectory
    if question in ("rmsd", "rmsf"):
        trajectory = trajectory.atom_slice(top.select("name CA"))
    answers = {
        "sasa": lambda: 100 * mdtraj.shrake_rupley(trajectory, n_sphere_points=960).sum(axis=1),
        "dssp": lambda: (mdtraj.compute_dssp(trajectory, simplified=False) == "H").mean(axis=1),
        "contacts": lambda: (mdtraj.compute_contacts(trajectory, "all")[0] <= CUTOFF / 10).sum(axis=1),
        "rg": lambda: 10 * mdtraj.compute_rg(trajectory),
        "rmsd": lambda: 10 * mdtraj.rmsd(trajectory, trajectory, 0),
        "rmsf": lambda: 10 * mdtraj.rmsf(trajectory, trajectory, 0),
        "dihedrals": lambda: np.degrees(
            np.concatenate([mdtraj.compute_phi(trajectory)[1], mdtraj.compute_psi(trajectory)[1]], axis=1)
        ).sum(axis=1),
    }
    answer = answers[question]()
    return time.perf_counter() - begun, answer


def mdanalysis_answer(question, topology, path, most=None):
    import MDAnalysis as mda
    from MDAnalysis.analysis.align import AlignTraj
    from MDAnalysis.analysis.dihedrals import Dihedral
    from MDAnalysis.analysis.dssp import DSSP
    from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis
    from MDAnalysis.analysis.pca import PCA
    from MDAnalysis.analysis.rms import RMSD, RMSF
    from MDAnalysis.lib.distances import capped_distance

    universe = mda.Universe(topology, path)
    step = max(1, len(universe.trajectory) // most) if most else 1
    begun = time.perf_counter()
    if question == "rg":
        answer = [universe.atoms.radius_of_gyration() for _ in universe.trajectory[::step]]
    elif question == "rmsd":
        answer = RMSD(universe, select="name CA").run(step=step).results.rmsd[:, 2]
    elif question == "rmsf":
        universe.transfer_to_memory(step=step)
        AlignTraj(universe, universe, select="name CA", in_memory=True).run()
        answer = RMSF(universe.select_atoms("name CA")).run().results.rmsf
    elif question == "dssp":
        answer = (DSSP(universe).run(step=step).results.dssp == "H").mean(axis=1)
    elif question == "dihedrals":
        angles = [a for r in universe.residues for a in (r.phi_selection(), r.psi_selection()) if a is not None]
        answer = Dihedral(angles).run(step=step).results.angles.sum(axis=1)
    elif question == "contacts":
        heavy = universe.select_atoms("not name H* 1H* 2H* 3H*")
        answer = []
        for ts in universe.trajectory[::step]:
            pairs = capped_distance(heavy.positions, heavy.positions, CUTOFF, box=ts.dimensions, return_distances=False)
            a, b = np.sort(heavy.resindices[pairs], axis=1).T
            answer.append(len(np.unique(a[b - a > 2] * universe.residues.n_residues + b[b - a > 2])))
    elif question == "hydrogen-bonds":
        bonds = HydrogenBondAnalysis(
            universe, None, "name H* 1H* 2H* 3H*", "name N* O*", d_h_a_angle_cutoff=150, update_selections=False
        )
        answer = bonds.run(step=step).count_by_time()
    else:
        answer = PCA(universe, select="name CA", align=True).run(step=step).results.variance[:10]
    return time.perf_counter() - begun, np.asarray(answer, dtype=float)


TOOLS = {"MDTraj": mdtraj_answer, "MDAnalysis": mdanalysis_answer}


def one_of_the_set(item):
    question, topology, path = item
    tool, frames = ARCHIVE[question]
    seconds, _ = TOOLS[tool](question, topology, path, frames)
    return question, seconds


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    tool, question, topology, path, workers, answer = sys.argv[1:]
    if question == "archive":
        import MDAnalysis  # noqa: F401
        import mdtraj  # noqa: F401

        begun = time.perf_counter()
        with get_context("fork").Pool(int(workers)) as pool:
            each = pool.map(one_of_the_set, [(name, topology, path) for name in ARCHIVE], chunksize=1)
        seconds, found = time.perf_counter() - begun, [seconds for _, seconds in each]
    else:
        seconds, found = TOOLS[tool](question, topology, path)
    print(seconds)
    np.savetxt(answer, found)
