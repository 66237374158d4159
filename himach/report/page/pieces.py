"""What may be left out of a page that would be too large: `Pieces`, each with words in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from himach.report.markup import Html, text

__all__ = ["Pieces"]

#: Stands before and behind the number of a piece: no text of a page has it.
MARK = "\x00"


@dataclass(frozen=True)
class _Piece:
    whole: Html
    instead: Html
    rank: int
    smaller: Callable[[], Html | None]


@dataclass
class Pieces:
    """Pieces of a page that are there if all fits into so many bytes, the more important ones first."""

    limit: int
    _pieces: list[_Piece] = field(default_factory=list)

    def add(self, whole: Html, instead: object, rank: int, smaller: Callable[[], Html | None] = lambda: None) -> Html:
        """Return what stands for a piece until `fit` puts it there.

        Parameters
        ----------
        whole
            The piece.
        instead
            What is there if it does not fit.
        rank
            Pieces of a lower one go first.
        smaller
            Makes a smaller form of the piece, for when not all fit; None: there is none.
        """
        self._pieces.append(_Piece(whole, text(instead), rank, smaller))
        return Html(f"{MARK}{len(self._pieces) - 1}{MARK}")

    def fit(self, page: str) -> str:
        """Return the page with the pieces that fit."""
        parts = page.split(MARK)
        order = [int(number) for number in parts[1::2]]
        room = self.limit - sum(len(part.encode()) for part in parts[::2])
        room -= sum(_size(self._pieces[number].instead) for number in order)
        wholes = {number: self._pieces[number].whole for number in order}
        if sum(map(_gain, (self._pieces[number] for number in order), wholes.values())) > room:
            wholes |= {number: small for number in order if (small := self._pieces[number].smaller()) is not None}
        chosen = {}
        for number in sorted(order, key=lambda number: (self._pieces[number].rank, number)):
            piece, whole = self._pieces[number], wholes[number]
            fits = _gain(piece, whole) <= room
            chosen[number] = whole if fits else piece.instead
            room -= _gain(piece, whole) if fits else 0
        return "".join(part if at % 2 == 0 else chosen[int(part)] for at, part in enumerate(parts))


def _size(part: str) -> int:
    return len(part.encode())


def _gain(piece: _Piece, whole: str) -> int:
    """Return how many bytes more a piece takes than what is there without it."""
    return max(0, _size(whole) - _size(piece.instead))
