"""Legends that say once what is drawn more than once: `draw_legend()`."""

from __future__ import annotations

from typing import Any

__all__ = ["draw_legend"]

#: Where a legend below axes begins, in points from the axes' lower left corner: under the labels of both axes.
BELOW = -34, -26


def draw_legend(axes: Any, below: bool = False, **look: Any) -> None:
    """Draw the legend of axes, an entry for each text: what has the same text shares it, as a line and its band do.

    Parameters
    ----------
    axes
        Matplotlib axes; without a text to show they get no legend.
    below
        Whether it stands below the label of the x axis, for texts that would cover what is drawn; in a figure without a
        layout, which makes no room for it, it does not.
    **look
        As `matplotlib.axes.Axes.legend` takes it.
    """
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.transforms import ScaledTranslation

    entries: dict[str, list[Any]] = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        entries.setdefault(label, []).append(handle)
    if not entries:
        return
    handles = [tuple(some) if len(some) > 1 else some[0] for some in entries.values()]
    beside = [one for one in handles if isinstance(one, tuple) and len({type(each) for each in one}) == 1]
    handlers = {one: HandlerTuple(ndivide=None, pad=0.2) for one in beside}  # of one kind: beside, not over each other
    if below and axes.figure.get_layout_engine() is not None:
        x, y = (points / 72 for points in BELOW)
        corner = axes.transAxes + ScaledTranslation(x, y, axes.figure.dpi_scale_trans)
        look = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": corner, "frameon": False, **look}
    axes.legend(handles, list(entries), handler_map=handlers, **look)
