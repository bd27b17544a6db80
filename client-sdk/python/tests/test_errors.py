"""Error classes: their names, copies, and pickles."""

from __future__ import annotations

import copy
import pickle
import ssl

import pytest
from server import Server

import abide
from abide import errors, extras, supervisor, tool_run
from abide.dial import tls_hint

CLASSES = [one for one in vars(abide).values() if isinstance(one, type) and issubclass(one, Exception)]

FORMER = [name for name in abide.__all__ if f"{name}Error" in abide.__all__ and name != "Abide"]

EXAMPLES = [
    abide.ConflictError("the session exists", code="conflict", hint="use another id", retry_after_ms=5),
    abide.TimedOutError("the query was not answered within 1 s", request_id="r1"),
    abide.UnknownOutcomeError("c1", "pay", "the bank answered 504"),
    abide.ToolFailedError("c1", "cancelled", None),
    abide.ClosedError(),
    abide.MissingPackageError("there is no module pandas", hint='pip install "abide-client[pandas]"'),
]


def test_all_errors_end_in_error() -> None:
    assert [one.__name__ for one in CLASSES if not one.__name__.endswith("Error")] == []


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_is_the_same_class(name: str) -> None:
    former = getattr(abide, name)
    assert former is getattr(abide, f"{name}Error")
    [module] = [one for one in (errors, extras, supervisor, tool_run) if one.__name__ == former.__module__]
    assert getattr(module, name) is former  # A pickle of the former class names the module.


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_can_be_copied_and_pickled(error: abide.AbideError, duplicate: object) -> None:
    """`Exception` called the constructor with the text alone, which raised a TypeError."""
    made = duplicate(error)  # type: ignore[operator]
    assert (type(made), str(made), made.args, vars(made)) == (type(error), str(error), error.args, vars(error))
    assert made is not error


def _certificate_error(verify_code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = verify_code
    return error


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (_certificate_error(18), "SSL_CERT_FILE"),
        (_certificate_error(20), "SSL_CERT_FILE"),
        (_certificate_error(62), "name of the certificate in the URL"),
        (_certificate_error(64), "name of the certificate in the URL"),
        (_certificate_error(10), "renew the certificate"),
        (_certificate_error(26), "docs/tls.md"),
        (ssl.SSLError(1, "no protocols available"), "docs/tls.md"),
    ],
    ids=str,
)
def test_the_hint_of_a_failed_handshake_fits_the_reason(error: OSError, hint: str) -> None:
    assert hint in (tls_hint(error) or "")


def test_other_errors_have_no_hint_of_tls() -> None:
    assert tls_hint(ConnectionRefusedError()) is None


async def test_an_encrypted_address_of_a_server_without_tls_is_explained(server: Server) -> None:
    with pytest.raises(abide.ConnectionFailedError) as raised:
        await abide.Abide.connect(server.url.replace("http:", "https:"))
    assert (raised.value.hint or "").startswith("write http:")
