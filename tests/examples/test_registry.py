"""The built-in analyses: their names, parameters, tables and plots; the plain runner that tells what they mean."""

import re

import matplotlib.pyplot as plt
import pytest
from support import plain
from support.sample_runs import BUILTIN_RUNS

import himach
from himach.examples import BUILTINS, SAMPLES, load, sample

STAYS = "stays(time_ps,lasting) residence(stays,ended,mean_ps)"
STATES = "H,B,E,G,I,T,S,P,coil"
#: What axes without a unit are called.
AXES = {"residue", "index of atom", "number of the carbon in its chain"}
#: Analysis -> tables and their columns.
TABLES = {
    "water-residence": f"survival(tau_ps,survival) {STAYS}",
    "ion-permeation": "events(ion,direction,entered_ps,left_ps) counts(direction,events,rate_per_ns)",
    "rmsd": "rmsd(time_ps,rmsd)",
    "rmsf": "rmsf(atom,rmsf,bfactor)",
    "radius-of-gyration": "rg(time_ps,rg,asphericity,acylindricity,anisotropy)",
    "geometry": "geometry(time_ps,ends,phi SER2)",
    "sasa": "sasa(time_ps,sasa) by(residue,sasa) radii(kind,radius,atoms)",
    "rdf": "rdf(r,g) coordination(r,n)",
    "msd": "msd(tau_ps,msd) diffusion(from_ps,to_ps,d_cm2_s,yeh_hummer_cm2_s)",
    "contacts": "frequency(a,b,frequency) counts(time_ps,contacts) lifetimes(a,b,stays,mean_ps)",
    "native-contacts": "q(time_ps,q)",
    "pairwise-rmsd": "pairwise(time_ps,mean)",
    "clusters": "clusters(cluster,size,center_frame) membership(time_ps,cluster)",
    "pca": "variance(component,variance,share,cosine) projections(time_ps,pc1,pc2,pc3) surface(pc1,pc2,free_energy)",
    "density": "profile(position,density)",
    "dielectric": "dielectric(epsilon) running(time_ps,epsilon)",
    "velocity-autocorrelation": "vacf(tau_ps,c) spectrum(wavenumber,density) diffusion(to_ps,d_cm2_s)",
    "secondary-structure": f"content(time_ps,{STATES}) residues(residue,{STATES})",
    "hydrogen-bonds": f"lifetime(tau_ps,survival) counts(time_ps,bonds) occupancy(donor,acceptor,occupancy) {STAYS}",
    "lipid-order": (
        "order(lipid,carbon,hydrogen,s_ch) by_leaflet(lipid,carbon,hydrogen,leaflet,s_ch) "
        "carbons(lipid,chain,number,carbon,s_ch)"
    ),
    "membrane": (
        "area(time_ps,lower,upper,DLPE,DLPC) thickness(time_ps,thickness) "
        "flip_flops(lipid,kind,from,to,left_ps,arrived_ps,outcome)"
    ),
}


@pytest.mark.parametrize("name", BUILTINS)
def test_tables_and_plot(name):
    which, parameters = BUILTIN_RUNS[name]
    analysis = load(name)(**parameters)
    outcome = plain.run(analysis, *sample(which), stop=120)
    for table, columns in re.findall(r"(\w+)\(([^)]*)\)", TABLES[name]):
        assert ",".join(outcome[table]) == columns
    result = [part for part in outcome.values() if isinstance(part, dict)]  # beside texts and arrays
    for table in result:
        assert len({len(column) for column in table.values()}) == 1
    for of_table in result:  # as of a trajectory that is thousands of times as long
        for column in {"time_ps", "tau_ps", "entered_ps", "left_ps", "from_ps", "to_ps"} & of_table.keys():
            of_table[column] = 10_000 * of_table[column]
    figure, axes = plt.subplots()
    while (following := analysis.next_stage()) is not None:
        analysis = following
    analysis.plot(outcome, axes)
    placed = [item for item in figure.axes if item.get_visible() and item.get_label() != "<colorbar>"]
    for panel in [item for item in placed if item.xaxis.get_visible()]:  # of two that share it, the first
        label = panel.get_xlabel()
        assert label in AXES or label.endswith((" / Å", " / ns", " / cm⁻¹"))
        assert panel.get_ylabel()
    figure.canvas.draw()
    plt.close(figure)


def test_samples_are_small():
    assert sum(path.stat().st_size for name in SAMPLES for path in sample(name)) < 5e6


def test_an_unknown_sample():
    with pytest.raises(himach.UsageError, match="there is no sample 'villain'; did you mean 'villin'"):
        sample("villain")
