"""An OpenMM reporter that pushes frames of a running simulation; OpenMM is imported only when it reports."""

from typing import Any

import numpy as np

from himach.io.push.writer import Writer


class OpenMMReporter:
    """Pushes a frame every `interval` steps, by the interface of OpenMM's reporters.

    Parameters
    ----------
    writer
        Where frames go; the caller closes it after the simulation.
    interval
        Steps between frames.
    velocities, forces
        Whether these are pushed too.
    periodic
        Whether molecules are wrapped into the box; None for what the system has.

    Examples
    --------
    >>> with himach.Writer("run7", n_atoms, nodes=["n1", "n2"]) as writer:  # doctest: +SKIP
    ...     simulation.reporters.append(himach.OpenMMReporter(writer, 1000))
    ...     simulation.step(1_000_000)
    """

    def __init__(
        self,
        writer: Writer,
        interval: int,
        *,
        velocities: bool = False,
        forces: bool = False,
        periodic: bool | None = None,
    ) -> None:
        if interval < 1:
            raise ValueError(f"interval is {interval}; it is a number of steps from 1 on")
        self.writer = writer
        self._interval = interval
        self._velocities = velocities
        self._forces = forces
        self._periodic = periodic

    def describeNextReport(self, simulation: Any) -> tuple[int, bool, bool, bool, bool, bool | None]:  # noqa: N802
        """Say when the next report is and what it needs: steps, positions, velocities, forces, energies, wrapping."""
        steps = self._interval - simulation.currentStep % self._interval
        return steps, True, self._velocities, self._forces, False, self._periodic

    def report(self, simulation: Any, state: Any) -> None:
        """Push the state; errors are those of `Writer.write`."""
        from openmm import unit

        velocity = unit.angstrom / unit.picosecond
        force = unit.kilojoule_per_mole / unit.angstrom
        self.writer.push(
            state.getPositions(asNumpy=True).value_in_unit(unit.angstrom),
            time=state.getTime().value_in_unit(unit.picosecond),
            box=self._box(simulation, state),
            velocities=state.getVelocities(asNumpy=True).value_in_unit(velocity) if self._velocities else None,
            forces=state.getForces(asNumpy=True).value_in_unit(force) if self._forces else None,
        )

    @staticmethod
    def _box(simulation: Any, state: Any) -> Any:
        """Return lengths and angles of the box, float32 (6,); None without a box."""
        if not simulation.system.usesPeriodicBoundaryConditions():
            return None
        from MDAnalysis.lib.mdamath import triclinic_box
        from openmm import unit

        vectors = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom)
        return np.asarray(triclinic_box(*vectors), dtype=np.float32)
