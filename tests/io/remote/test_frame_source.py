"""Files by URL are a source of frames."""

from __future__ import annotations

import pytest

from himach.io.trajectory.origin import open_origin

from ..frame_sources import OriginTests, write_files


class TestFilesByUrl(OriginTests):
    tolerance = 1e-4

    @pytest.fixture
    def source(self, web):
        return open_origin([web.url(path.name) for path in write_files(web.folder)])
