"""URLs in place of paths: `is_url()`, `absolute()`, the name of a file, and `redact()`, a text without secrets.

A file's name is its URL without user, password and signature; datasets, records, logs and messages contain only names.
Query parts that may identify the file and may be secret are replaced by their digests. Only processes that were given
the whole URL keep it, in memory: `full_url()`.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit, urlunsplit

from himach.errors import UsageError

PathLike = str | os.PathLike[str]

#: One slash is enough, as pathlib drops the other. A single letter is no scheme.
_FORM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}([^/].*)", re.DOTALL)
_OTHERS = frozenset({"file", "himach", "imd", "tcp"})
#: Query parts that identify the file and are no secret.
_TELLING = frozenset(
    {"download", "file", "filename", "files", "id", "name", "path", "persistentid", "version", "versionid"}
)
#: Query parts that are credentials of AWS, Google, Azure and others, which change from run to run.
_CREDENTIALS = re.compile(
    r"x-(amz|goog|oss|ms)-.*|(access_?|api_?|auth_?|security-?)?(token|auth|secret|signature|sig|password|pwd)|"
    r"(access_?|api_?|auth_?|security-?)key|awsaccesskeyid|googleaccessid|key-pair-id|policy|expires?|hmac|"
    r"s[eprtv]|sk(oid|tid|[tesv])|spr|sip"
)
_DIGEST = "sha256:"
_SUFFIX = re.compile(r"[A-Za-z0-9_.-]{1,100}")

_addresses: dict[str, str] = {}
_secrets: set[str] = set()


def strip_scheme(path: PathLike) -> PathLike:
    """Return PATH of ``file://PATH`` and NAME of ``himach://NAME``, a dataset; return others as they are."""
    text = os.fspath(path)
    if text.lower().startswith("file:/"):
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise UsageError(f"{text} names no file of this machine, as file:///data/md.xtc does")
        return unquote(parts.path)
    if not text.startswith("himach:/"):
        return path
    name, _, server = text.removeprefix("himach:/").removeprefix("/").partition("?server=")
    if server:
        raise UsageError(f"{text}: give the server by --server {server}, in Python by cache='tcp://{server}'")
    if not name:
        raise UsageError(f"{text} names no dataset, as himach://run7 does")
    return name


def is_url(path: PathLike) -> bool:
    """Return whether a path is the URL of a remote file."""
    return _full_form(path) is not None


def absolute(path: PathLike) -> str:
    """Return the absolute path, or the name of a URL; remember the URL's secrets in this process."""
    url = _full_form(path)
    if url is None:
        return os.path.abspath(os.path.expanduser(path))
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    query = [word for word in parts.query.split("&") if word]
    clear = [word for word in query if word.partition("=")[0].lower() in _TELLING or _DIGEST in word]
    lasting = [word for word in query if not _CREDENTIALS.fullmatch(word.partition("=")[0].lower())]
    names = [word if word in clear else _digest(word) for word in lasting]
    name = urlunsplit((parts.scheme, place, parts.path, "&".join(names), ""))
    if name == url:
        _addresses.setdefault(name, url)
        return name
    _addresses[name] = url
    values = [part.partition("=")[2] for part in query if part not in clear]
    for secret in (user, user.partition(":")[2], *values):
        _secrets.update(word for word in (secret, unquote(secret)) if len(word) > 2)
    return name


def public_name(path: PathLike) -> str:
    """Return a path unchanged, or the name of a URL."""
    return absolute(path) if is_url(path) else os.fspath(path)


def full_url(name: str) -> str:
    """Return the whole URL of a name."""
    return _addresses.get(name, name)


def redact(text: str) -> str:
    """Return a text with the secrets of this process's URLs replaced by ``***``."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def refuse_urls(paths: Iterable[PathLike], why: str) -> None:
    """Raise UsageError for the first of these paths that is a URL."""
    for path in filter(is_url, paths):
        raise UsageError(f"{absolute(path)} is the URL of a file elsewhere: {why}")


def local_file_name(name: str) -> str:
    """Return the last part of a URL's path as a local file name; its suffix gives the format."""
    parts = _SUFFIX.findall(unquote(urlsplit(name).path).rpartition("/")[2])
    return ("".join(parts)[-100:]).lstrip(".") or "file"


def _digest(word: str) -> str:
    """Return a query part with the digest of its value, or of the whole part if it has none."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{_DIGEST}{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def _full_form(path: PathLike) -> str | None:
    match = _FORM.fullmatch(os.fspath(path))
    if match is None or match[1].lower() in _OTHERS:
        return None
    return f"{match[1].lower()}://{match[2]}"
