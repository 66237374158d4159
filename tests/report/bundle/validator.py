"""Validates a crate against the profile of Process Run Crates, with no network: ``validator.py CRATE FOLDER``.

A process of its own, as the validator changes how JSON-LD is loaded. It gets the words of RO-Crate from what rocrate
brings along, by its cache of what was fetched before. It prints what is wrong, a line each, and how much was looked at.
"""

import io
import sys
from pathlib import Path

import requests
import rocrate
from requests_cache import CachedSession
from rocrate_validator.models.settings import ValidationSettings
from rocrate_validator.models.severity import Severity
from rocrate_validator.services import validate
from urllib3 import HTTPResponse

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
ACCEPT = "application/ld+json, application/json, */*;q=0.1"


def remember(cache: Path) -> None:
    """Put the context into the cache, as if it had been fetched."""
    text = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_bytes()
    headers = {"Content-Type": "application/ld+json"}
    answer = requests.Response()
    answer.status_code, answer.url, answer._content = 200, CONTEXT, text
    answer.headers.update(headers)
    answer.request = requests.Session().prepare_request(requests.Request("GET", CONTEXT, headers={"Accept": ACCEPT}))
    answer.raw = HTTPResponse(io.BytesIO(text), headers, 200, preload_content=False, request_url=CONTEXT)
    with CachedSession(str(cache), backend="sqlite", expire_after=-1) as session:
        session.cache.save_response(answer)


def main() -> None:
    crate, folder = sys.argv[1:]
    cache = Path(folder) / "cache"
    remember(cache)
    settings = ValidationSettings(
        rocrate_uri=crate,
        profile_identifier="process-run-crate",
        requirement_severity=Severity.RECOMMENDED,
        cache_path=cache,
        offline=True,
    )
    result = validate(settings)
    for issue in result.get_issues():
        print(issue.check.identifier, issue.message)
    print(len(result.executed_checks), "checks")


if __name__ == "__main__":
    main()
