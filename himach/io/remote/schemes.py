"""What each kind of URL is asked by: `transport_of()`."""

from __future__ import annotations

from typing import Any

from himach.errors import UsageError
from himach.io.remote.transport import Transport
from himach.io.remote.url import address_of, masked

__all__ = ["transport_of"]


def transport_of(name: str) -> Transport:
    """Return what asks for the file of a name.

    Raises
    ------
    UsageError
        A package that this takes is not installed, or there is no such kind of URL.
    """
    if "::" in name:
        raise UsageError(f"{name}: a URL of URLs is not read; himach keeps what it reads by itself: give the last one")
    scheme = name.partition(":")[0]
    of_s3 = scheme in ("s3", "s3a")
    try:
        return _of_s3(name) if of_s3 else _of_file_system(name, scheme)
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): "
            f"pip install 'himach[{'s3' if of_s3 else 'remote'}]'"
        ) from None
    except ValueError as error:
        raise UsageError(masked(f"{name} cannot be read: {error}")) from None


def _of_s3(name: str) -> Transport:
    from himach.io.remote.s3 import S3Transport

    return S3Transport(name)


def _of_file_system(name: str, scheme: str) -> Transport:
    from fsspec.core import url_to_fs

    from himach.io.remote.file_system import FileSystemTransport, HttpTransport

    if scheme not in ("http", "https"):
        return FileSystemTransport(name, *url_to_fs(address_of(name)))
    import aiohttp  # noqa: F401  (else its lack is told when a file is read)

    return HttpTransport(name, *url_to_fs(address_of(name), **_trusting(scheme)))


def _trusting(scheme: str) -> dict[str, Any]:
    """Return options by which proxies and passwords are found where other tools find them."""
    from fsspec.config import conf

    return {"client_kwargs": {"trust_env": True, **conf.get(scheme, {}).get("client_kwargs", {})}}
