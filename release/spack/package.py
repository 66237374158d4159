# Copyright Spack Project Developers. See COPYRIGHT file for details.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHimach(PythonPackage):
    """MapReduce for molecular-dynamics trajectories: one core, a laptop, a notebook or a cluster."""

    homepage = "https://himach.example/himach"
    url = "https://himach.example/himach/releases/download/v0.1.0/himach-0.1.0.tar.gz"

    license("BSD-3-Clause")

    # The checksum is set at a release.
    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    depends_on("c", type="build")

    depends_on("python@3.11:", type=("build", "link", "run"))

    depends_on("py-meson-python@0.17:", type="build")
    depends_on("py-cython@3.1:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-numpy@2.0:")

    with default_args(type="run"):
        depends_on("py-click@8.1:")
        depends_on("py-cloudpickle@3.0:")
        depends_on("py-fastjsonschema@2.18:")
        depends_on("py-jinja2@3.1:")
        depends_on("py-matplotlib@3.8:")
        depends_on("py-mdanalysis@2.8:")
        depends_on("py-mpi4py@4.0:")
        depends_on("py-pyroaring@1.0:")
        depends_on("py-scipy@1.12:")
        depends_on("py-tqdm@4.66:")

    conflicts("platform=darwin", msg="himach runs on Linux")
    conflicts("platform=windows", msg="himach runs on Linux")
