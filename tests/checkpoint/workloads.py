"""What is killed: the six built-ins and more, slowed down; they note what they map, over the frames named here."""

from checkpoint.sample import SCRIPT as ANALYSES

#: Analyses that note each frame in a file of KILLS_LOG, and take KILLS_SLEEP seconds for it.
SCRIPT = (
    ANALYSES
    + '''
import os, time
from himach import examples

def note(analysis, frame):
    """Note that a frame was mapped, and take some time for it."""
    with open(os.path.join(os.environ["KILLS_LOG"], f"{type(analysis).__name__}-{os.getpid()}"), "a") as log:
        log.write(f"{frame.number} {time.time()}\\n")
    time.sleep(float(os.environ["KILLS_SLEEP"]))

class Slow:
    def map(self, frame):
        yield from super().map(frame)
        note(self, frame)

class Rmsd(Slow, examples.load("rmsd")):
    selection: str = "name CA"

class Msd(Slow, examples.load("msd")):
    selection: str = "name K CL"
    tau_max: int = 20

class Rdf(Slow, examples.load("rdf")):
    a: str = "name K"

class WaterResidence(Slow, examples.load("water-residence")):
    solute: str = "name K"
    tau_max: int = 10

class HydrogenBonds(Slow, examples.load("hydrogen-bonds")):
    pass

class IonPermeation(Slow, examples.load("ion-permeation")):
    top: str = "index 110 246 382 518"
    bottom: str = "index 59 195 331 467"
    radius: float | None = 2.5

class Objects(himach.Analysis):
    def map(self, frame):
        yield frame.number % 3, {"time": frame.time}
        yield ("text", frame.number % 2), [frame.number, None]
        note(self, frame)
    def reduce(self, key, series):
        return repr(series.values)

class Chain(Slow, Chain):
    pass
'''
)

#: Analyses, the trajectory, its frames, and words that choose some of them.
WORKLOADS: dict[str, tuple[tuple[str, ...], str, range, tuple[str, ...]]] = {
    "rmsd": (("Rmsd",), "villin", range(0, 250, 2), ("--step", "2")),
    "msd": (("Msd",), "nanopore", range(60), ("--stop", "60")),
    "rdf": (("Rdf",), "nanopore", range(40), ("--stop", "40")),
    "water-residence": (("WaterResidence",), "nanopore", range(60), ("--stop", "60")),
    "hydrogen-bonds": (("HydrogenBonds",), "villin", range(250), ()),
    "ion-permeation": (("IonPermeation",), "kcsa", range(101), ()),
    "chain": (("Chain",), "villin", range(240, 10, -3), ("--start", "240", "--stop", "10", "--step", "-3")),
    "several": (("Chain", "Objects", "Rmsd"), "villin", range(100), ("--stop", "100")),
}
