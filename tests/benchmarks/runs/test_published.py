"""What papers published, beside what the forms of plans say of it."""

from __future__ import annotations

from himach.benchmarks.runs.published import points


def test_published_points_are_met_within_five_percent_or_told_why_not():
    found = points()
    assert len(found) == 12
    for point in found:
        assert point.how in ("predicted", "formula", "fitted", "open")
        assert point.reason
        if point.how == "open":
            assert "not published" in point.reason
        else:
            assert abs(point.error) < 0.05, point
    assert [point.what for point in found if point.how == "predicted"] == ["FusionSim, 2 million nodes"]
    zazen = next(point for point in found if "1e9 frames" in point.what)
    assert zazen.found[0] < zazen.published < zazen.found[1]
